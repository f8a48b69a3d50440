"""Means over seeds, and intervals that know of other seeds and of other sources."""

import math

import numpy as np
import pytest
from scipy.stats import nct, t

from tasks.attacks.effects import difference_over_seeds, paired_effects
from tasks.findings.statistics.power import POWER, smallest_shown
from tasks.findings.statistics.resampling import estimate
from tasks.findings.statistics.seeds import mean_over_seeds, over_seeds
from tests.tasks.findings.statistics.records import row, some


def test_three_seeds_give_the_interval_that_is_computed_by_hand():
    mean, deviation, interval = mean_over_seeds([1.0, 2.0, 4.5], 0.95)
    # mean 2.5; squares 2.25 + 0.25 + 4 = 6.5, over 2 is 3.25; t(2, 0.975) = 4.302652729911275
    half = 4.302652729911275 * math.sqrt(3.25) / math.sqrt(3)
    assert mean == 2.5
    assert deviation == pytest.approx(math.sqrt(3.25), rel=1e-12)
    assert interval == pytest.approx([2.5 - half, 2.5 + half], rel=1e-9)


def test_the_confidence_level_is_two_sided():
    _, _, (low, high) = mean_over_seeds([0.0, 1.0], 0.5)
    assert (high - low) / 2 == pytest.approx(t.ppf(0.75, 1) * 0.5)


@pytest.mark.parametrize("values", [[], [3.0]])
def test_fewer_than_two_seeds_have_no_interval(values):
    with pytest.raises(ValueError, match="no interval"):
        mean_over_seeds(values, 0.95)


# ------------------------------------------------------------------------------------- seeds and sources


def simulated(chance: np.random.Generator, seeds: int, sources: int, of_seed: float, of_source: float, of_both: float):
    """Columns of each seed: 0.3 and what is peculiar to seed, source, and both; all seeds judged on the same texts."""
    tokens = chance.integers(50, 200, sources).astype(float)
    effects = 0.3 + chance.normal(0, of_seed, (seeds, 1)) + chance.normal(0, of_source, sources)
    effects = effects + chance.normal(0, of_both, (seeds, sources))
    return [[tokens * effect, tokens] for effect in effects]


def ratio(total, count):
    return total / count


def test_both_variances_are_added_as_by_hand():
    columns = simulated(np.random.default_rng(0), 3, 12, 0.1, 0.3, 0.1)
    found = over_seeds(ratio, columns, 0.95)
    values = [nats.sum() / tokens.sum() for nats, tokens in columns]
    seeds = np.std(values, ddof=1) / math.sqrt(3)
    without = [
        np.mean([np.delete(nats, i).sum() / np.delete(tokens, i).sum() for nats, tokens in columns]) for i in range(12)
    ]
    sources = math.sqrt(11 / 12 * sum((value - np.mean(without)) ** 2 for value in without))
    half = math.hypot(t.ppf(0.975, 2) * seeds, t.ppf(0.975, 11) * sources)
    assert found.value == pytest.approx(np.mean(values)) and found.of_seeds == pytest.approx(values)
    assert found.interval == pytest.approx([found.value - half, found.value + half])
    alpha = found.p_value  # at which the interval ends at 0
    assert math.hypot(t.isf(alpha / 2, 2) * seeds, t.isf(alpha / 2, 11) * sources) == pytest.approx(found.value)
    assert (found.standard_error_of_seeds, found.standard_error_of_sources) == pytest.approx((seeds, sources))


@pytest.mark.parametrize("spread", [(0.1, 0.0, 0.3), (0.03, 0.3, 0.1), (0.0, 0.3, 0.05), (0.1, 0.3, 0.3)])
@pytest.mark.parametrize(("seeds", "sources"), [(3, 10), (5, 31)])
def test_nominal_95_percent_cover_whatever_differs_most(seeds, sources, spread):
    chance, hits, hits_of_t = np.random.default_rng(0), 0, 0
    for _ in range(300):
        found = over_seeds(ratio, simulated(chance, seeds, sources, *spread), 0.95)
        _, _, (low, high) = mean_over_seeds(found.of_seeds, 0.95)
        hits, hits_of_t = hits + (found.interval[0] <= 0.3 <= found.interval[1]), hits_of_t + (low <= 0.3 <= high)
    assert hits / 300 >= 0.92
    if spread[0] < 0.1:  # the texts that all seeds share differ more than seeds do
        assert hits_of_t / 300 < 0.8


@pytest.mark.parametrize("seeds", [2, 3])
def test_two_seeds_that_happen_to_agree_show_nothing_surely(seeds):
    """Seeds that differ most, and no effect: p is below 0.001 in next to no study, where it was in one of 25."""
    chance, low = np.random.default_rng(0), 0
    for _ in range(300):
        columns = simulated(chance, seeds, 31, 0.3, 0.3, 0.0)
        low += over_seeds(ratio, [[nats - 0.3 * tokens, tokens] for nats, tokens in columns], 0.95).p_value < 0.001
    assert low <= 1


@pytest.mark.filterwarnings("error")
def test_sources_that_are_all_alike_leave_student_s_t_of_the_seeds():
    tokens = np.full(4, 10.0)
    found = over_seeds(ratio, [[tokens * value, tokens] for value in (-0.300, -0.301, -0.302)], 0.95)
    error = 0.001 / math.sqrt(3)
    assert found.p_value == pytest.approx(2 * t.sf(0.301 / error, 2), rel=1e-6)
    assert found.interval == pytest.approx([-0.301 - t.ppf(0.975, 2) * error, -0.301 + t.ppf(0.975, 2) * error])


def test_differences_of_models_are_those_of_each_seed():
    studies = [some("a", 0.5, 12, seed=seed) + some("b", 0.2, 12, seed=seed + 10) for seed in range(3)]
    found = difference_over_seeds(studies, "b", "a", 0.95)
    of_seeds = [paired_effects([rows], "b", "a", 100, 0.95).increase_nats_per_token.value for rows in studies]
    assert found.of_seeds == pytest.approx(of_seeds) and found.sources == 12
    assert found.interval[0] < found.value < found.interval[1] < 0 and found.p_value < 0.05


@pytest.mark.filterwarnings("error")
def test_seeds_and_sources_that_are_all_alike_have_no_width_and_one_source_no_interval():
    alike = [row(model, i, 4.0, 4.5) for model in "ab" for i in range(5)]
    found = difference_over_seeds([alike, alike], "b", "a", 0.95)
    assert (found.interval, found.p_value) == ([0.0, 0.0], None)
    one = [given | {"source": "one"} for given in alike]
    assert difference_over_seeds([one, one], "b", "a", 0.95).interval is None


def test_what_is_compared_must_be_two_seeds_and_the_same_tokens():
    rows = some("a") + some("b")
    with pytest.raises(ValueError, match="1 seed gives no interval"):
        difference_over_seeds([rows], "b", "a", 0.95)
    with pytest.raises(ValueError, match="not attacked on the same tokens of document 029"):
        difference_over_seeds([rows, rows[:-1]], "b", "a", 0.95)


@pytest.mark.parametrize("level", [0.95, 1 - 0.05 / 24])
@pytest.mark.parametrize("freedom", [1.4, 2, 9, 30, 500])
def test_it_is_what_the_noncentral_t_finds_in_four_of_five(freedom, level):
    found = smallest_shown([(0.5, freedom)], level)
    limit = t.ppf((1 + level) / 2, freedom)
    assert nct.sf(limit, freedom, found / 0.5) == pytest.approx(POWER, abs=1e-3)


def test_a_difference_of_that_size_is_shown_in_four_of_five_studies():
    chance, sources = np.random.default_rng(0), 12
    effect = smallest_shown([(1 / sources**0.5, sources - 1)], 0.95)
    values = effect + chance.normal(0, 1, (4000, sources))
    shown = values.mean(1) / values.std(1, ddof=1) * sources**0.5 > t.ppf(0.975, sources - 1)
    assert shown.mean() == pytest.approx(POWER, abs=0.02)


def test_it_stands_beside_every_estimate_and_follows_its_standard_error():
    values, ones = np.random.default_rng(0).normal(0.3, 1.0, 12), np.ones(12)

    def mean(total, count):
        return total / count

    of_sources = estimate(mean, [values, ones], 200, 0.95)
    assert of_sources.smallest_shown == pytest.approx(smallest_shown([(values.std(ddof=1) / 12**0.5, 11)], 0.95))
    assert estimate(mean, [values[:1], ones[:1]], 200, 0.95).smallest_shown is None
    few = [estimate(mean, [values[:sources], ones[:sources]], 200, 0.95) for sources in (5, 6)]
    assert [one.smallest_shown is None for one in few] == [True, False], "exchanges of five sources show nothing"
    over = over_seeds(mean, [[values, ones], [values + 0.5, ones]], 0.95)
    parts = [(over.standard_error_of_seeds, 1), (over.standard_error_of_sources, 11)]
    assert over.smallest_shown == pytest.approx(smallest_shown(parts, 0.95))
