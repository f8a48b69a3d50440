"""poison-detect: which rows each score, and rules that are not told, would take away.

Detectors give scores of training rows, fp64 [N], the higher the more suspicious; rules decide by scores. No rule is
given the truth.
"""

from collections.abc import Mapping

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from storage import durable
from storage.records import read_each
from tasks.language.bag import words_of
from tasks.poison.manifest import CLEAN, VERSION, Manifest
from tasks.poison.stages import MODELS, DetectConfig
from tasks.poison.study import Detection, Factors, Queries
from tasks.stage.run import StageInput, StageRun

VOTES = 3
"""Of the five rules; so many make a row suspect."""
Scores = dict[str, dict[str, np.ndarray]]
"""Model -> method -> scores of the training rows in the order of the manifest."""


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
    first = {model: rules_of(scores[model], strategy, how)["top-k"] for model in MODELS}
    places = {"detected": first["victim"], "untrained": first["untrained"], "oracle": manifest.truth}
    places["random"] = np.random.default_rng([seed, 2]).permutation(len(ids))[:k]
    return {name: sorted(ids[of].tolist()) for name, of in places.items()}


def rules_of(scores: Mapping[str, np.ndarray], strategy: str, how: Detection) -> dict[str, np.ndarray]:
    """Rule -> which rows it suspects by the scores of one model."""
    kinds = np.stack([of for name, of in scores.items() if name.startswith(strategy)], axis=1)
    return decisions(scores[strategy], kinds, how.assumed_share, how.percentile)


def scores_of(given: StageInput, manifest: Manifest, factors: Factors, queries: Queries) -> Scores:
    """The records of poison-scores. CheckFailed unless each method scored each training row once."""
    ids, strategy = [row["row_id"] for row in manifest.train], factors.strategy
    versions = [f"{strategy}{VERSION}{number}" for number in range(queries.transforms)]
    of_model = [strategy, strategy + CLEAN, *versions, f"{strategy}-variance", "identity", f"identity{CLEAN}"]
    methods = {model: [*of_model, "loss", "spectral", "clustering"] for model in MODELS}
    methods["victim"] += ["tracin", f"tracin{CLEAN}"]
    methods["none"] = ["overlap", f"overlap{CLEAN}"]
    required = [(row, model, method) for model, every in methods.items() for method in every for row in ids]
    rows = read_each(given.path / "records.parquet", ("row_id", "model", "method"), required)
    return {
        model: {method: np.array([rows[row, model, method]["score"] for row in ids]) for method in every}
        for model, every in methods.items()
    }


def found(truth: np.ndarray, scores: np.ndarray, k: int) -> dict[str, float]:
    """AUROC, average precision, and F1 of the `k` highest scores; `truth` is bool [N].

    Ties count as their mean: constant scores have an AUROC of 0.5 wherever the poisoned rows stand.
    """
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
    of = precision_recall_fscore_support(truth, suspected, average="binary", zero_division=0.0)
    names = ("precision", "recall", "f1")
    return {"suspected": float(suspected.sum()), **dict(zip(names, map(float, of[:3]), strict=True))}


def decisions(scores: np.ndarray, kinds: np.ndarray, share: float, percentile: float) -> dict[str, np.ndarray]:
    """Rule -> which rows it suspects, bool [N]: by one score, or by those of every kind of query, [N, kinds].

    `share` of the rows is expected to be poisoned; the last rule is the majority of the others.
    """
    low, high = np.percentile(scores, [25, 75])
    several = StandardScaler().fit_transform(kinds)
    first = np.argsort(-scores, kind="stable")[: count_of(share, len(scores))]
    rules = {
        "percentile": scores > np.percentile(scores, percentile),
        "top-k": np.isin(np.arange(len(scores)), first),
        "iqr": scores > high + 1.5 * (high - low),
        "isolation-forest": IsolationForest(contamination=share, random_state=0).fit_predict(several) < 0,
        "one-class-svm": OneClassSVM(nu=share).fit_predict(several) < 0,
    }
    return {**rules, "voting": np.sum([*rules.values()], axis=0) >= VOTES}


def count_of(share: float, rows: int) -> int:
    return max(1, round(share * rows))


def spectral(hidden: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Squared length along the first principal direction of what the last layer reads [N, d], label by label (Tran et
    al. 2018, "Spectral signatures in backdoor attacks")."""
    values = np.zeros(len(hidden))
    for of in (labels == label for label in np.unique(labels)):
        values[of] = PCA(1, random_state=0).fit_transform(hidden[of])[:, 0] ** 2
    return values


def clustering(hidden: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """One less the share of a row's cluster, of two, among the rows of its label (Chen et al. 2018, "Detecting backdoor
    attacks on deep neural networks by activation clustering")."""
    values = np.zeros(len(hidden))
    for of in (labels == label for label in np.unique(labels)):
        reduced = PCA(min(10, *hidden[of].shape), random_state=0).fit_transform(hidden[of])
        cluster = KMeans(min(2, len(reduced)), n_init=10, random_state=0).fit_predict(reduced)
        values[of] = 1 - np.bincount(cluster)[cluster] / len(cluster)
    return values


def overlap(texts: list[str], queries: list[str]) -> np.ndarray:
    """Cosine of the words of each text, weighted by rarity, with those of all queries together: needs no model."""
    vectors = TfidfVectorizer(analyzer=words_of).fit([*texts, *queries])
    mean = np.asarray(vectors.transform(queries).mean(axis=0)).ravel()
    return vectors.transform(texts) @ (mean / np.linalg.norm(mean))
