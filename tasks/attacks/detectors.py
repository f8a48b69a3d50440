"""Detectors of poisoned training rows: scores of rows, rules that decide by scores, and how well both find the truth.

Scores are fp64 [N], a row each; the higher, the more suspicious. No rule is given the truth.
"""

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.ensemble import IsolationForest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import average_precision_score, precision_recall_fscore_support, roc_auc_score
from sklearn.preprocessing import StandardScaler
from sklearn.svm import OneClassSVM

from tasks.language.bag import words_of

VOTES = 3
"""Of the five rules; so many make a row suspect."""


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


# ------------------------------------------------------------------------------- scores without gradients


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
