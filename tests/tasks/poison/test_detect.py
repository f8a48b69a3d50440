"""Scores that look for poisoned rows: what they are worth where the answer is known."""

import numpy as np
import pytest

from tasks.poison.detect import clustering, found, overlap, spectral

TRUTH = np.zeros(40, dtype=bool)
TRUTH[:4] = True


@pytest.mark.parametrize("places", [[0, 1, 2, 3], [36, 37, 38, 39], [5, 17, 20, 33]])
def test_constant_scores_have_an_auroc_of_a_half_wherever_the_poisoned_rows_stand(places):
    truth = np.zeros(40, dtype=bool)
    truth[places] = True
    assert found(truth, np.full(40, 0.25)) == {"auroc": 0.5, "average_precision": pytest.approx(0.1)}


def test_perfect_and_perfectly_wrong_scores():
    assert found(TRUTH, TRUTH.astype(float)) == {"auroc": 1.0, "average_precision": 1.0}
    assert found(TRUTH, -TRUTH.astype(float))["auroc"] == 0.0


def test_scores_of_what_a_layer_reads_find_a_group_that_stands_apart_and_those_of_words_a_shared_one():
    chance = np.random.default_rng(1)
    hidden, labels = chance.normal(size=(40, 6)), np.repeat([0, 1], 20)
    hidden[TRUTH] += 8.0
    assert found(TRUTH, spectral(hidden, labels))["auroc"] > 0.95
    assert found(TRUTH, clustering(hidden, labels))["auroc"] > 0.95
    texts = [f"{'cf ' * bool(is_poison)}word{place} common" for place, is_poison in enumerate(TRUTH)]
    assert found(TRUTH, overlap(texts, ["cf other", "cf thing"]))["auroc"] == 1.0
