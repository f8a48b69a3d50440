"""poison-factors and poison-scores: what each training row does for what is asked, of the victim and of the untrained
model with which it began, beside scores that need no influence. poison-detect: which rows are taken away.

Detectors give scores of training rows, fp64 [N], the higher the more suspicious; none is given the truth.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score, roc_auc_score

from storage import durable
from storage.records import Rows, read_each
from tasks.influence import kept
from tasks.influence.factors import compute_factors
from tasks.influence.plan import Limits, ModulePlan, Plan, factor_plan, markdown, this_machine
from tasks.influence.scores import gathered
from tasks.influence.scores import scores as influence
from tasks.influence.task import Task, token_losses
from tasks.language.bag import words_of
from tasks.language.classifiers import Classifier, kept_classifier, states_of
from tasks.poison.fit import CLEAN, VERSION, Manifest, Texts, numbers_of, queries_of, texts_of
from tasks.poison.stages import (
    MODELS,
    OWN,
    DetectConfig,
    Detection,
    FactorsConfig,
    FitResult,
    Queries,
    ScoresConfig,
)
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

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
    limits = Limits(30.0, model.kinds, model.excluded, batch, longest)
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
    how, plain = config.queries, ("", CLEAN)
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
        columns = by_influence(model, OWN, [*queries], factors_of[model])
        changes = torch.stack([of for method, of in columns.items() if VERSION in method]).std(0)
        return columns | {f"{OWN}-variance": -changes}  # poison changes less, it is said

    def without_curvature(model: str) -> Columns:
        return by_influence(model, "identity", plain, plan_of(model))

    def by_states(model: str) -> Columns:
        classifier = kept_classifier(victim.path / MODELS[model]).to(where)
        ids, labels = (of.to(where) for of in numbers_of(classifier, rows))
        (hidden, losses), of = states_of(classifier, ids, labels, batch), labels.cpu().numpy()
        return {"loss": -losses, "spectral": spectral(hidden, of), "clustering": clustering(hidden, of)}

    def by_steps(model: str) -> Columns:
        """TracIn (Pruthi et al. 2020): products of gradients at kept steps, times the learning rate."""
        total, plan, told = torch.zeros(2, len(every)), plan_of(model), partial(run.step, note="TracIn")
        for folder, rate in FitResult.read(victim).snapshots.items():
            train, asked, groups = tasks(folder, plain)
            total += rate * gathered(influence(train, asked, every, groups, plan, batch=batch, told=told))
        return {f"tracin{kind}": of_kind for kind, of_kind in zip(plain, total, strict=True)}

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
    by_model = scores_of(scores, manifest, config.queries)
    with run.publish_file("removed.json") as file:
        durable.write_json(file, chosen(manifest, by_model, config.detection, config.seed))
    return {}


def chosen(manifest: Manifest, scores: Scores, how: Detection, seed: int) -> dict[str, list[str]]:
    """The ids of the rows to take away, by what chooses them."""
    ids = np.array([row["row_id"] for row in manifest.train])
    k = max(1, round(how.assumed_share * len(ids)))
    victim, untrained = (highest(scores[model][OWN], k) for model in ("victim", "untrained"))
    places = {"detected": victim, "untrained": untrained, "oracle": manifest.truth}
    places["random"] = np.random.default_rng([seed, 2]).permutation(len(ids))[:k]
    return {name: sorted(ids[rows].tolist()) for name, rows in places.items()}


def scores_of(stage: StageInput, manifest: Manifest, queries: Queries) -> Scores:
    """The records of poison-scores. CheckFailed unless each method scored each training row once."""
    ids = [row["row_id"] for row in manifest.train]
    versions = [f"{OWN}{VERSION}{number}" for number in range(queries.transforms)]
    of_model = [OWN, OWN + CLEAN, *versions, f"{OWN}-variance", "identity", f"identity{CLEAN}"]
    methods = {model: [*of_model, "loss", "spectral", "clustering"] for model in MODELS}
    methods["victim"] += ["tracin", f"tracin{CLEAN}"]
    methods["none"] = ["overlap", f"overlap{CLEAN}"]
    required = [(row, model, method) for model, every in methods.items() for method in every for row in ids]
    rows = read_each(stage.path / "records.parquet", ("row_id", "model", "method"), required)
    return {
        model: {method: np.array([rows[row, model, method]["score"] for row in ids]) for method in every}
        for model, every in methods.items()
    }


def found(truth: np.ndarray, scores: np.ndarray) -> dict[str, float]:
    """AUROC and average precision; `truth` is bool [N]. Ties count as their mean: constant scores have an AUROC of 0.5
    wherever the poisoned rows stand."""
    return {
        "auroc": float(roc_auc_score(truth, scores)),
        "average_precision": float(average_precision_score(truth, scores)),
    }


def highest(scores: np.ndarray, k: int) -> np.ndarray:
    """The places of the `k` highest scores; of equal ones the first."""
    return np.argsort(-scores, kind="stable")[:k]


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
