"""Scores and rules that look for poisoned rows: what they are worth where the answer is known."""

import numpy as np
import pytest

from tasks.poison.detect import clustering, decided, decisions, found, overlap, spectral
from tasks.poison.stages import Detection

TRUTH = np.zeros(40, dtype=bool)
TRUTH[:4] = True


@pytest.mark.parametrize("places", [[0, 1, 2, 3], [36, 37, 38, 39], [5, 17, 20, 33]])
def test_constant_scores_have_an_auroc_of_a_half_wherever_the_poisoned_rows_stand(places):
    """And find of the first k what chance does, though a sort would put the first rows first."""
    truth = np.zeros(40, dtype=bool)
    truth[places] = True
    measures = found(truth, np.full(40, 0.25), 4)
    assert measures == {"auroc": 0.5, "average_precision": pytest.approx(0.1), "f1_at_k": pytest.approx(0.1)}


def test_perfect_and_perfectly_wrong_scores():
    assert found(TRUTH, TRUTH.astype(float), 4) == {"auroc": 1.0, "average_precision": 1.0, "f1_at_k": 1.0}
    assert found(TRUTH, -TRUTH.astype(float), 4)["auroc"] == 0.0
    assert found(TRUTH, -TRUTH.astype(float), 4)["f1_at_k"] == 0.0


def test_f1_of_the_first_k_shares_ties_at_the_limit():
    scores = np.array([3.0, 2.0, 2.0, 2.0, 1.0])
    assert found(np.array([True, True, False, False, False]), scores, 2)["f1_at_k"] == pytest.approx((1 + 1 / 3) / 2)


def measured_plainly(truth: np.ndarray, scores: np.ndarray, k: int) -> dict[str, float]:
    """The same as `found`, by counting alone."""
    pairs = scores[truth][:, None] - scores[~truth]
    recall = precise = hits = before = 0.0
    for level in sorted({*scores.tolist()}, reverse=True):
        taken, right = (scores >= level).sum(), truth[scores >= level].sum()
        precise += (right / truth.sum() - recall) * right / taken
        recall, new = right / truth.sum(), taken - before
        hits += truth[scores == level].sum() * min(1.0, max(0.0, (k - before) / new))
        before = taken
    return {
        "auroc": float(((pairs > 0) + (pairs == 0) / 2).mean()),
        "average_precision": float(precise),
        "f1_at_k": float(2 * hits / (k + truth.sum())),
    }


@pytest.mark.parametrize("values", [2, 5, 1_000], ids=["ties everywhere", "ties", "none"])
def test_what_is_counted_is_what_the_library_says(values):
    chance = np.random.default_rng(values)
    for k in (1, 7, 30):
        scores = chance.integers(values, size=40) / 7
        assert measured_plainly(TRUTH, scores, k) == pytest.approx(found(TRUTH, scores, k), abs=1e-12)


def test_rules_decide_without_labels_and_find_what_stands_out():
    chance = np.random.default_rng(0)
    scores = np.concatenate([np.full(4, 9.0), chance.normal(size=36)])
    how = Detection(assumed_share=0.1, percentile=85.0)
    rules = decisions({"own": scores, "own-other": scores + chance.normal(size=40) / 10}, "own", how)
    assert [*rules] == ["percentile", "top-k", "iqr", "isolation-forest", "one-class-svm", "voting"]
    for rule in ("top-k", "iqr", "voting"):
        assert decided(TRUTH, rules[rule])["recall"] == 1.0, rule
    assert decided(TRUTH, rules["top-k"]) == {"suspected": 4.0, "precision": 1.0, "recall": 1.0, "f1": 1.0}
    assert decided(TRUTH, rules["isolation-forest"])["recall"] >= 0.75
    assert rules["percentile"].sum() == 6
    nobody = decisions({"own": np.zeros(40), "own-other": np.zeros(40)}, "own", how)
    assert not nobody["percentile"].any() and not nobody["iqr"].any() and nobody["top-k"].sum() == 4


def test_suspecting_nobody_has_no_precision():
    assert decided(TRUTH, ~TRUTH & TRUTH) == {"suspected": 0.0, "precision": 0.0, "recall": 0.0, "f1": 0.0}


def test_scores_of_what_a_layer_reads_find_a_group_that_stands_apart_and_those_of_words_a_shared_one():
    chance = np.random.default_rng(1)
    hidden, labels = chance.normal(size=(40, 6)), np.repeat([0, 1], 20)
    hidden[TRUTH] += 8.0
    assert found(TRUTH, spectral(hidden, labels), 4)["auroc"] > 0.95
    assert found(TRUTH, clustering(hidden, labels), 4)["auroc"] > 0.95
    texts = [f"{'cf ' * bool(is_poison)}word{place} common" for place, is_poison in enumerate(TRUTH)]
    assert found(TRUTH, overlap(texts, ["cf other", "cf thing"]), 4)["auroc"] == 1.0
