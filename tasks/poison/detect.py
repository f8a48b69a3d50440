"""poison-factors and poison-scores: what each training row does for what is asked, of the victim and of the untrained
model with which it began, beside scores that need no influence. poison-detect: which rows each score, and rules that
are not told, would take away.

Detectors give scores of training rows, fp64 [N], the higher the more suspicious; rules decide by scores. No rule is
given the truth.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from storage import durable
from storage.records import Rows, read_each
from tasks.influence import kept
from tasks.influence.factors import compute_factors
from tasks.influence.plan import Limits, ModulePlan, Plan, factor_plan, markdown, this_machine
from tasks.influence.scores import gathered, tracin
from tasks.influence.scores import scores as influence
from tasks.influence.task import Task, token_losses
from tasks.language.bag import words_of
from tasks.language.classifiers import Classifier, kept_classifier, states_of
from tasks.poison.fit import CLEAN, VERSION, Manifest, Texts, numbers_of, queries_of, texts_of
from tasks.poison.stages import (
    MODELS,
    DetectConfig,
    Detection,
    Factors,
    FactorsConfig,
    FitResult,
    Queries,
    ScoresConfig,
)
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

VOTES = 3
"""Of the five rules; so many make a row suspect."""
Scores = dict[str, dict[str, np.ndarray]]
"""Model -> method -> scores of the training rows in the order of the manifest."""
Columns = Mapping[str, torch.Tensor | np.ndarray]
"""Method -> score of each training row, [N]."""


def task_of(model: Classifier, texts: Texts) -> Task:
    """The texts as influence asks for them, on the device of the model."""
    ids, labels = (values.to(model.last.weight.device) for values in numbers_of(model, texts))
    return Task(
        model,
        len(ids),
        batch=lambda indices: (ids[torch.from_numpy(indices)], labels[torch.from_numpy(indices)]),
        losses=lambda network, batch, generator: token_losses(network(batch[0]), batch[1], generator),
        positions=lambda batch, module: model.real(batch[0], module),
    )


def factors(
    run: StageRun, config: FactorsConfig, data: StageInput, victim: StageInput, attack: StageInput
) -> dict[str, float]:
    """Publishes `plan.md`, before anything is computed, and `factors/`, module by module: a kill costs one of them."""
    manifest, where = Manifest.read(data.path), device(config.execution)
    model = kept_classifier(victim.path / config.folder).to(where)
    train, batch = task_of(model, texts_of(manifest.train)), config.execution.micro_batch_examples
    longest = train.batch(np.arange(1))[0].shape[1]  # to which all are padded
    limits = Limits(config.factors.strategy, 30.0, model.kinds, model.excluded, batch, longest)
    plan = factor_plan(model, this_machine(where), limits)
    with run.publish_file("plan.md") as file:
        file.write_text(markdown(plan), encoding="utf-8")
    folder, every = run.directory / "factors", np.arange(train.size)
    statistics = compute_factors(train, every, folder, plan, seed=config.seed, batch=batch, anew=True, told=run.step)
    run.outputs.append("factors")
    kept.require_usable(statistics, config.factors.max_degraded_share)
    return {}


def scores(
    run: StageRun, config: ScoresConfig, data: StageInput, victim: StageInput, **of: StageInput
) -> dict[str, float]:
    """Records: the score of each training row by model and method; higher is more suspicious. Each part, one pass over
    the rows for all kinds of queries, is durable as it is done. `of` are the factors of the models."""
    manifest, where, batch = Manifest.read(data.path), device(config.execution), config.execution.micro_batch_examples
    how, strategy, plain = config.queries, config.factors.strategy, ("", CLEAN)
    queries = queries_of(manifest, config.poison.trigger, how.rows, how.transforms, config.seed)
    rows, every = texts_of(manifest.train), np.arange(len(manifest.train))
    factors_of = {model: of[f"{model}_factors"].path / "factors" for model in MODELS}

    def tasks(folder: str, kinds: Sequence[str]) -> tuple[Task, Task, list[np.ndarray]]:
        """The rows, the queries of all kinds, and which of these are of each kind."""
        classifier = kept_classifier(victim.path / folder).to(where)
        texts, labels = ([text for kind in kinds for text in queries[kind][side]] for side in (0, 1))
        ends = np.cumsum([len(queries[kind][0]) for kind in kinds])
        return task_of(classifier, rows), task_of(classifier, (texts, labels)), np.split(np.arange(ends[-1]), ends[:-1])

    def plan_of(model: str) -> list[ModulePlan]:
        return kept.complete(factors_of[model], kept_classifier(victim.path / MODELS[model]))[0]

    def by_influence(model: str, method: str, kinds: Sequence[str], factors: Path | Plan) -> dict[str, torch.Tensor]:
        train, asked, groups = tasks(MODELS[model], kinds)
        told = partial(run.step, note=f"{model}, {method}")
        blocks = influence(train, asked, every, groups, factors, damping=how.damping, batch=batch, told=told)
        return dict(zip((f"{method}{kind}" for kind in kinds), gathered(blocks), strict=True))

    def by_curvature(model: str) -> Columns:
        columns = by_influence(model, strategy, [*queries], factors_of[model])
        changes = torch.stack([of for method, of in columns.items() if VERSION in method]).std(0)
        return columns | {f"{strategy}-variance": -changes}  # poison changes less, it is said

    def without_curvature(model: str) -> Columns:
        return by_influence(model, "identity", plain, plan_of(model))

    def by_states(model: str) -> Columns:
        classifier = kept_classifier(victim.path / MODELS[model]).to(where)
        ids, labels = (of.to(where) for of in numbers_of(classifier, rows))
        (hidden, losses), of = states_of(classifier, ids, labels, batch), labels.cpu().numpy()
        return {"loss": -losses, "spectral": spectral(hidden, of), "clustering": clustering(hidden, of)}

    def by_steps(model: str) -> Columns:
        groups, steps = tasks(MODELS[model], plain)[-1], FitResult.read(victim).snapshots
        checkpoints = ((*tasks(folder, plain)[:2], rate) for folder, rate in steps.items())
        by_kind = tracin(checkpoints, every, groups, plan_of(model), batch, partial(run.step, note="TracIn"))
        return {f"tracin{kind}": of_kind for kind, of_kind in zip(plain, by_kind, strict=True)}

    def records(part: tuple[str, Callable[[str], Columns]]) -> Rows:
        model, make = part
        return [
            {"row_id": row["row_id"], "model": model, "method": method, "score": score}
            for method, scores in make(model).items()
            for row, score in zip(manifest.train, np.asarray(scores, float).tolist(), strict=True)
        ]

    makers = {"curvature": by_curvature, "identity": without_curvature, "states": by_states}
    parts = {f"{model}-{name}": (model, make) for model in MODELS for name, make in makers.items()}
    by_words = {f"overlap{kind}": overlap(rows[0], queries[kind][0]) for kind in plain}
    parts |= {"victim-tracin": ("victim", by_steps), "none-overlap": ("none", lambda model: by_words)}
    run.merge_records(run.each(parts, records, "kinds of scores"), ("row_id", "model", "method"))
    return {}


def detect(run: StageRun, config: DetectConfig, data: StageInput, scores: StageInput) -> dict[str, float]:
    """Publishes `removed.json`: the ids of the rows to take away, by what chooses them."""
    manifest = Manifest.read(data.path)
    by_model = scores_of(scores, manifest, config.factors, config.queries)
    with run.publish_file("removed.json") as file:
        durable.write_json(file, chosen(manifest, by_model, config.factors.strategy, config.detection, config.seed))
    return {}


def chosen(manifest: Manifest, scores: Scores, strategy: str, how: Detection, seed: int) -> dict[str, list[str]]:
    """The ids of the rows to take away, by what chooses them."""
    ids, k = np.array([row["row_id"] for row in manifest.train]), count_of(how.assumed_share, len(manifest.train))
    victim, untrained = (highest(scores[model][strategy], k) for model in ("victim", "untrained"))
    places = {"detected": victim, "untrained": untrained, "oracle": manifest.truth}
    places["random"] = np.random.default_rng([seed, 2]).permutation(len(ids))[:k]
    return {name: sorted(ids[rows].tolist()) for name, rows in places.items()}


def scores_of(stage: StageInput, manifest: Manifest, factors: Factors, queries: Queries) -> Scores:
    """The records of poison-scores. CheckFailed unless each method scored each training row once."""
    ids, strategy = [row["row_id"] for row in manifest.train], factors.strategy
    versions = [f"{strategy}{VERSION}{number}" for number in range(queries.transforms)]
    of_model = [strategy, strategy + CLEAN, *versions, f"{strategy}-variance", "identity", f"identity{CLEAN}"]
    methods = {model: [*of_model, "loss", "spectral", "clustering"] for model in MODELS}
    methods["victim"] += ["tracin", f"tracin{CLEAN}"]
    methods["none"] = ["overlap", f"overlap{CLEAN}"]
    required = [(row, model, method) for model, every in methods.items() for method in every for row in ids]
    rows = read_each(stage.path / "records.parquet", ("row_id", "model", "method"), required)
    return {
        model: {method: np.array([rows[row, model, method]["score"] for row in ids]) for method in every}
        for model, every in methods.items()
    }


def found(truth: np.ndarray, scores: np.ndarray, k: int) -> dict[str, float]:
    """AUROC, average precision, and F1 of the `k` highest scores; `truth` is bool [N]. Ties count as their mean:
    constant scores have an AUROC of 0.5 wherever the poisoned rows stand."""
    least = np.sort(scores)[-k]
    above, level = scores > least, scores == least
    hits = truth[above].sum() + (k - above.sum()) * truth[level].mean()
    return {
        "auroc": float(roc_auc_score(truth, scores)),
        "average_precision": float(average_precision_score(truth, scores)),
        "f1_at_k": float(2 * hits / (k + truth.sum())),
    }


def decided(truth: np.ndarray, suspected: np.ndarray) -> dict[str, float]:
    """Precision, recall and F1 of suspected rows, both bool [N], and their number."""
    measures = precision_recall_fscore_support(truth, suspected, average="binary", zero_division=0.0)
    names = ("precision", "recall", "f1")
    return {"suspected": float(suspected.sum()), **dict(zip(names, map(float, measures[:3]), strict=True))}


def decisions(scores: Mapping[str, np.ndarray], strategy: str, how: Detection) -> dict[str, np.ndarray]:
    """Rule -> which rows it suspects by the scores of one model, bool [N]: by those of influence, or by those of every
    kind of query. `how.assumed_share` of the rows is expected to be poisoned; the last rule is the majority."""
    own, share = scores[strategy], how.assumed_share
    low, high = np.percentile(own, [25, 75])
    kinds = np.stack([of for name, of in scores.items() if name.startswith(strategy)], axis=1)
    several = StandardScaler().fit_transform(kinds)
    rules = {
        "percentile": own > np.percentile(own, how.percentile),
        "top-k": np.isin(np.arange(len(own)), highest(own, count_of(share, len(own)))),
        "iqr": own > high + 1.5 * (high - low),
        "isolation-forest": IsolationForest(contamination=share, random_state=0).fit_predict(several) < 0,
        "one-class-svm": OneClassSVM(nu=share).fit_predict(several) < 0,
    }
    return {**rules, "voting": np.sum([*rules.values()], axis=0) >= VOTES}


def highest(scores: np.ndarray, k: int) -> np.ndarray:
    """The places of the `k` highest scores; of equal ones the first."""
    return np.argsort(-scores, kind="stable")[:k]


def count_of(share: float, rows: int) -> int:
    return max(1, round(share * rows))


def spectral(hidden: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Squared length along the first principal direction of what the last layer reads [N, d], label by label (Tran et
    al. 2018, "Spectral signatures in backdoor attacks")."""
    values = np.zeros(len(hidden))
    for rows in (labels == label for label in np.unique(labels)):
        values[rows] = PCA(1, random_state=0).fit_transform(hidden[rows])[:, 0] ** 2
    return values


def clustering(hidden: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One less the share of a row's cluster, of two, among the rows of its label (Chen et al. 2018, "Detecting backdoor
    attacks on deep neural networks by activation clustering")."""
    values = np.zeros(len(hidden))
    for rows in (labels == label for label in np.unique(labels)):
        reduced = PCA(min(10, *hidden[rows].shape), random_state=0).fit_transform(hidden[rows])
        cluster = KMeans(min(2, len(reduced)), n_init=10, random_state=0).fit_predict(reduced)
        values[rows] = 1 - np.bincount(cluster)[cluster] / len(cluster)
    return values


def overlap(texts: list[str], queries: list[str]) -> np.ndarray:
    """Cosine of the words of each text, weighted by rarity, with those of all queries together: needs no model."""
    vectors = TfidfVectorizer(analyzer=words_of).fit([*texts, *queries])
    mean = np.asarray(vectors.transform(queries).mean(axis=0)).ravel()
    return vectors.transform(texts) @ (mean / np.linalg.norm(mean))
