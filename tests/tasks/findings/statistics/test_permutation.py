"""P-values of two models exchanged within sources."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from tasks.findings.statistics import permutation
from tasks.findings.statistics.permutation import exchange_p_value


def ratio(total: Any, count: Any) -> Any:
    return total / count


def means(differences: list[float]) -> float:
    count = np.ones(len(differences))
    return exchange_p_value(ratio, [np.array(differences), count], [0 * count, count])


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 2.0, 3.0], 2 / 8),  # only all three alike are as large as 6
        ([1.0, 2.0, -1.0], 6 / 8),  # |sum| 2: of +-1+-2+-1, 4 2 2 0 and their opposites
        ([1.0] * 10, 2 / 1024),
        ([0.0, 0.0, 0.0], 1.0),
        ([1.0], 1.0),
    ],
)
def test_few_sources_are_counted_as_by_hand(differences, p):
    assert means(differences) == p


def test_a_ratio_is_that_of_every_exchange_of_whole_sources():
    chance = np.random.default_rng(0)
    ours, theirs = ([chance.normal(3, 1, 7), chance.uniform(1, 9, 7)] for _ in range(2))

    def difference(swapped: tuple[bool, ...]) -> float:
        a, b = (
            [np.where(swapped, x, y).sum() for x, y in zip(*sides, strict=True)]
            for sides in ((theirs, ours), (ours, theirs))
        )
        return abs(ratio(*a) - ratio(*b))

    every = [difference(swapped) for swapped in product((False, True), repeat=7)]
    expected = np.mean(np.array(every) >= every[0] * (1 - 1e-9))
    assert 0 < expected < 1 and exchange_p_value(ratio, ours, theirs) == pytest.approx(expected)


def test_drawn_exchanges_are_near_all_of_them(monkeypatch):
    differences = np.random.default_rng(3).normal(0.3, 1, 14).tolist()
    exact = means(differences)
    monkeypatch.setattr(permutation, "EXACT_SOURCES", 13)
    assert 0.05 < exact < 0.95 and means(differences) == pytest.approx(exact, abs=0.015)


@pytest.mark.parametrize("sources", [1, 2, 4, 5, 6, 14, 15, 40])
def test_the_lowest_p_value_is_that_of_a_difference_in_every_source(sources):
    assert permutation.least_p_value(sources) == means([1.0] * sources)


def test_a_difference_in_every_one_of_many_sources_is_never_certain():
    assert means([1.0] * 40) == 1 / (1 + permutation.EXCHANGES)


def test_equal_differences_count_as_large_whatever_their_last_digits():
    tenths = [1, 2, 4, 6, -3, -2, 5, 6, -1]
    assert means([tenth / 10 for tenth in tenths]) == means([float(tenth) for tenth in tenths])


@pytest.mark.parametrize("sources", [8, 20])
def test_how_much_is_drawn_at_once_changes_nothing(sources, monkeypatch):
    differences = np.random.default_rng(5).normal(0.3, 1, sources).tolist()
    whole = means(differences)
    monkeypatch.setattr(permutation, "DRAWN_AT_ONCE", 100)
    assert means(differences) == whole


def test_the_level_is_kept_and_there_is_power():
    """Skewed sources of unequal size: found at 5 % at most so often where nothing is, and mostly where something is."""
    chance = np.random.default_rng(0)

    def found(shift: float) -> float:
        ps = []
        for _ in range(300):
            tokens, of_text = chance.integers(40, 300, 10).astype(float), chance.exponential(1, 10)
            a, b = of_text + chance.exponential(1, 10), of_text + chance.exponential(1, 10) + shift
            ps.append(exchange_p_value(ratio, [tokens * a, tokens], [tokens * b, tokens]))
        return np.mean(np.array(ps) <= 0.05)

    assert found(0.0) <= 0.075
    assert found(2.0) > 0.8
