"""Rates whose intervals do not vanish where nothing was hit."""

import numpy as np
import pytest

from tasks.findings.statistics.rates import rate, rate_difference
from tasks.findings.statistics.resampling import Estimate

ONES = np.ones(40)


def hit(count: int) -> np.ndarray:
    return np.array([1.0] * count + [0.0] * (40 - count))


def test_a_rate_is_of_documents_and_its_interval_holds_it():
    trials = np.array([1.0, 3.0, 2.0, 2.0])
    found = rate(np.array([1.0, 0.0, 1.0, 2.0]), trials, 0.95)
    low, high = found.interval
    assert found.value == 0.5 and 0 <= low < 0.5 < high <= 1


@pytest.mark.parametrize(("count", "bounds"), [(0, [0.0, 0.0881]), (40, [0.9119, 1.0])])
def test_where_nothing_or_everything_was_hit_the_exact_interval_stands(count, bounds):
    """Clopper and Pearson for 0 of 40: 1 - 0.025 ** (1 / 40) = 0.0881."""
    assert rate(hit(count), ONES, 0.95).interval == pytest.approx(bounds, abs=1e-4)


def test_sources_count_once_and_not_documents():
    few = rate(np.zeros(4), np.full(4, 10.0), 0.95).interval
    assert few[1] == pytest.approx(1 - 0.025 ** (1 / 4))


def test_two_rates_of_zero_differ_by_zero_and_not_with_certainty():
    found = rate_difference(hit(0), hit(0), ONES, 0.95)
    low, high = found.interval
    assert found.value == 0.0
    # two sources are added, which hit 1 and -1: variance of the mean 2 / (41 * 42), roughly; 2.02 of its root
    assert -low == pytest.approx(high) == pytest.approx(0.069, abs=5e-4)
    assert found.p_value == 1.0


def test_everything_against_nothing_is_a_large_difference_that_is_not_certain():
    found = rate_difference(hit(40), hit(0), ONES, 0.95)
    low, high = found.interval
    assert found.value == 1.0 == high and 0.8 < low < 0.9
    assert found.p_value < 0.001


def test_pairs_count():
    """Hits on the same texts: the difference is surer than that of two independent rates."""
    found = rate_difference(hit(22), hit(20), ONES, 0.95)
    low, high = found.interval
    assert found.value == pytest.approx(0.05)
    assert high - low < 0.25 and -0.06 < low < 0.05 < high


def test_one_hit_more_does_not_make_an_interval_narrower():
    """Seen on ten sources: 0.0% had 0.0% to 30.8%, and 0.8%, one hit of 125, had 0.0% to 3.5%."""
    trials, none, few = np.full(10, 12.5), np.zeros(10), np.array([1.0] + [0.0] * 9)
    (_, nothing), (_, one) = (rate(hits, trials, 0.95).interval for hits in (none, few))
    assert one >= nothing == pytest.approx(0.3085, abs=1e-4)
    for hits in (none, few):
        low, high = rate_difference(hits, none, trials, 0.95).interval
        assert low < -0.25 and high > 0.25


def test_sources_that_differ_more_than_chance_count_as_fewer():
    """Ten sources, of which one holds nearly all texts and all hits: without it there are none."""
    trials = np.array([900.0] + [10.0] * 9)
    assert rate(np.array([900.0] + [0.0] * 9), trials, 0.95).interval == pytest.approx([0.0, 1.0], abs=1e-4)
    low, high = rate(hit(20), ONES, 0.95).interval
    apart, together = (
        rate(np.full(10, 5.0), np.full(10, 10.0), 0.95),
        rate(hit(20)[15:25] * 10, np.full(10, 10.0), 0.95),
    )
    assert apart.value == together.value == 0.5
    assert together.interval[1] - together.interval[0] >= apart.interval[1] - apart.interval[0] > high - low


def hits_of(chance: np.random.Generator, sources: int, first: float, second: float) -> list[np.ndarray]:
    """Hits on four texts of each source, which resemble each other, for two models."""
    of_source = chance.uniform(-0.15, 0.15, (sources, 1))
    return [(chance.random((sources, 4)) < share + of_source).sum(axis=1).astype(float) for share in (first, second)]


@pytest.mark.parametrize("sources", [10, 31])
def test_true_differences_are_covered(sources):
    chance, trials = np.random.default_rng(0), np.full(sources, 4.0)
    found = [rate_difference(*hits_of(chance, sources, 0.5, 0.3), trials, 0.95).interval for _ in range(60)]
    assert np.mean([low <= 0.2 <= high for low, high in found]) > 0.94


def test_a_true_difference_is_found_and_none_seldom():
    """Where 40 % against 20 % of texts succeeded, the former bound saw a difference in 1 of 100 small studies."""
    chance, trials = np.random.default_rng(0), np.full(12, 4.0)

    def found(first: float, second: float) -> float:
        ps = [rate_difference(*hits_of(chance, 12, first, second), trials, 0.95).p_value for _ in range(200)]
        return np.mean(np.array(ps) <= 0.05)

    assert found(0.3, 0.3) <= 0.06
    assert found(0.5, 0.2) > 0.7


def test_one_source_has_no_interval():
    one = np.array([4.0])
    assert rate(np.zeros(1), one, 0.95).interval is None
    assert rate_difference(np.zeros(1), np.zeros(1), one, 0.95) == Estimate(value=0.0, interval=None)
