"""Rates whose intervals do not vanish where nothing was hit."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.statistics.rates import rate, rate_difference

ONES = np.ones(40)


def hit(count: int) -> np.ndarray:
    return np.array([1.0] * count + [0.0] * (40 - count))


def test_a_rate_is_of_documents_and_its_interval_holds_it():
    trials = np.array([1.0, 3.0, 2.0, 2.0])
    found = rate(np.array([1.0, 0.0, 1.0, 2.0]), trials, 300, 0.95)
    low, high = found.interval
    assert found.value == 0.5 and 0 <= low < 0.5 < high <= 1


@pytest.mark.parametrize(("count", "bounds"), [(0, [0.0, 0.0881]), (40, [0.9119, 1.0])])
def test_where_nothing_or_everything_was_hit_the_exact_interval_stands(count: int, bounds: list[float]):
    """Clopper and Pearson for 0 of 40: 1 - 0.025 ** (1 / 40) = 0.0881."""
    assert rate(hit(count), ONES, 300, 0.95).interval == pytest.approx(bounds, abs=1e-4)


def test_sources_count_once_and_not_documents():
    few = rate(np.zeros(4), np.full(4, 10.0), 300, 0.95).interval
    assert few[1] == pytest.approx(1 - 0.025 ** (1 / 4))


def test_two_rates_of_zero_differ_by_zero_and_not_with_certainty():
    found = rate_difference(hit(0), hit(0), ONES, 300, 0.95)
    low, high = found.interval
    assert found.value == 0.0
    assert -low == high == pytest.approx(0.0881, abs=1e-4)


def test_everything_against_nothing_is_a_large_difference_that_is_not_certain():
    found = rate_difference(hit(40), hit(0), ONES, 300, 0.95)
    low, high = found.interval
    assert found.value == 1.0 == high and 0.8 < low < 0.9


def test_pairs_count():
    """Hits on the same texts: the difference is surer than that of two independent rates."""
    found = rate_difference(hit(22), hit(20), ONES, 500, 0.95)
    low, high = found.interval
    assert found.value == pytest.approx(0.05)
    assert high - low < 0.25 and -0.06 < low < 0.05 < high


def test_one_hit_more_does_not_make_an_interval_narrower():
    """Seen on ten sources: 0.0% had 0.0% to 30.8%, and 0.8%, one hit of 125, had 0.0% to 3.5%."""
    trials, none, few = np.full(10, 12.5), np.zeros(10), np.array([1.0] + [0.0] * 9)
    (_, nothing), (_, one) = (rate(hits, trials, 500, 0.95).interval for hits in (none, few))
    assert one >= nothing == pytest.approx(0.3085, abs=1e-4)
    for hits in (none, few):
        low, high = rate_difference(hits, none, trials, 500, 0.95).interval
        assert low < -0.25 and high > 0.25


def test_the_bootstrap_counts_where_it_is_wider():
    """Ten sources, of which one holds nearly all texts and all hits: without it there are none."""
    trials = np.array([900.0] + [10.0] * 9)
    found = rate(np.array([900.0] + [0.0] * 9), trials, 500, 0.95)
    assert found.interval == pytest.approx([0.0, 0.9975], abs=1e-4)  # exact, 9 of 10: 55.5% to 99.75%


def test_one_source_has_no_interval():
    one = np.array([4.0])
    assert rate(np.zeros(1), one, 300, 0.95).interval is None
    assert rate_difference(np.zeros(1), np.zeros(1), one, 300, 0.95).interval is None
