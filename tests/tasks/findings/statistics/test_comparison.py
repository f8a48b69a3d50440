"""Arms over seeds: the numbers of the recorded study, and what is refused."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from storage.errors import CheckFailed
from tasks.findings import compare as compared
from tasks.findings.configuration import Metric
from tasks.findings.statistics.comparison import (
    Arms,
    Comparison,
    Pair,
    arm_mean,
    holm,
    require_comparable,
    seeds_needed,
)
from tasks.findings.statistics.seeds import over_seeds

RECORDED = {"none": (9.69245e-3, 2.15e-5), "random": (9.73053e-3, 5.96e-5), "adversarial": (9.77702e-3, 2.33e-5)}
"""Mean and standard deviation (ddof 0) of ten seeds an arm, as the recorded study has them."""
PAIRS = [("random", "none"), ("adversarial", "none"), ("adversarial", "random")]


def compare(values: Arms, pairs: list[Pair], level: float, least: int, **how: Any) -> list[Comparison]:
    metric = Metric(higher=False, pairs=[[*pair] for pair in pairs])
    return [*compared.compare({"": values}, {"": metric}, level, least, **how).differences.get("", [])]


def values_with(mean: float, deviation: float, chance: int, seeds: int = 10) -> dict[str, float]:
    """So many values with exactly this mean and standard deviation (ddof 0)."""
    drawn = np.random.default_rng(chance).standard_normal(seeds)
    values = mean + deviation * (drawn - drawn.mean()) / drawn.std()
    return {str(seed): float(value) for seed, value in enumerate(values)}


@pytest.fixture
def recorded() -> dict[str, dict[str, float]]:
    return {arm: values_with(*facts, number) for number, (arm, facts) in enumerate(RECORDED.items())}


def test_of_the_recorded_ten_seeds_adversarial_is_worse_and_random_is_not_shown_to_be(recorded):
    """By Welch's t: which seed had which value is not known, and so no pairs are."""
    random, adversarial, between = compare(recorded, PAIRS, 0.95, 3)
    assert adversarial.worse and not adversarial.better
    assert (random.p_welch, between.p_welch) == (pytest.approx(0.0981, abs=1e-4), pytest.approx(0.0505, abs=1e-4))
    assert random.percent == pytest.approx(0.393, abs=5e-4), "and not 0.004, as it says there"
    assert adversarial.percent == pytest.approx(0.873, abs=5e-4)
    assert adversarial.p_welch == pytest.approx(2.55e-7, rel=0.01)


def test_the_interval_has_ddof_1_and_students_t(recorded):
    """The recorded one is z times the deviation with ddof 0: 1.334e-5 in place of 1.62e-5."""
    found = arm_mean(recorded["none"], 0.95)
    assert found.interval is not None
    assert (found.interval[1] - found.interval[0]) / 2 == pytest.approx(1.62e-5, rel=0.002)


def test_the_numbers_are_those_of_scipy(recorded):
    found = compare(recorded, PAIRS, 0.95, 3)
    for one in found:
        ours, theirs = (list(recorded[name].values()) for name in (one.arm, one.reference))
        paired = stats.ttest_rel(ours, theirs)
        assert one.p == pytest.approx(paired.pvalue) and one.p_welch == pytest.approx(
            stats.ttest_ind(ours, theirs, equal_var=False).pvalue
        )
        assert one.interval == pytest.approx(list(paired.confidence_interval(0.95)))
    small, middle, large = sorted(one.p for one in found)
    assert sorted(one.p_adjusted for one in found) == pytest.approx(
        [3 * small, max(3 * small, 2 * middle), max(2 * middle, large)]
    )


def test_nothing_is_better_below_the_least_number_of_seeds_and_on_one_seed_there_is_no_interval(recorded):
    assert not any(one.better or one.worse for one in compare(recorded, PAIRS, 0.95, 11))
    one_seed = {arm: {"0": values["0"]} for arm, values in recorded.items()}
    for one in compare(one_seed, PAIRS, 0.95, 1):
        assert (one.interval, one.p, one.p_adjusted, one.better, one.worse) == (None, None, None, False, False)
    assert arm_mean(one_seed["none"], 0.95).interval is None


def test_exchanges_of_three_seeds_show_nothing(recorded):
    three = {arm: {seed: values[seed] for seed in "012"} for arm, values in recorded.items()}
    found = compare(three, PAIRS, 0.95, 3)
    assert all(one.least_p_exchange == 0.25 <= one.p_exchange for one in found)


@pytest.mark.parametrize(("effect", "seeds"), [(7.0, 3), (1.0, 10), (0.5, 34), (0.2, 199)])
def test_the_seeds_needed_are_those_of_the_known_tables(effect, seeds):
    """As G*Power has them: a two-sided paired t test at 5 % with a power of 80 %."""
    assert seeds_needed(effect, 1.0, 0.95) == seeds
    assert seeds_needed(-effect, 1.0, 0.95) == seeds


def test_what_these_seeds_could_have_shown_is_what_needs_as_many(recorded):
    for one in compare(recorded, PAIRS, 0.95, 3):
        among = 1 - 0.05 / len(PAIRS)
        assert seeds_needed(one.smallest_shown * 1.001, one.standard_deviation, among) == one.seeds
        assert seeds_needed(one.smallest_shown * 0.999, one.standard_deviation, among) == one.seeds + 1


def test_for_an_effect_that_is_hardly_there_no_number_of_seeds_is_named():
    assert seeds_needed(0.001, 1.0, 0.95) is None and seeds_needed(0.0, 1.0, 0.95) is None


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"a": {"0": 1.0, "1": 2.0}, "b": {"0": 3.0}}, "no value of b, seed 1"),
        ({"a": {"0": 1.0}, "b": {"0": 2.0, "1": 3.0}}, "no value of a, seed 1"),
        ({"a": {"0": 1.0}, "b": {"0": float("nan")}}, "b, seed 0 is nan"),
        ({"a": {"0": 1.0}, "b": {"0": 1.0}}, "a, seed 0 and b, seed 0 have the same value"),
        ({"a": {"0": 1.0, "1": 1.0}}, "a, seed 0 and a, seed 1 have the same value"),
    ],
)
def test_what_cannot_be_compared_is_refused_by_name(values, said):
    with pytest.raises(ValueError, match=said):
        require_comparable(values)
    with pytest.raises(CheckFailed, match=said):
        compare(values, [], 0.95, 3)


def test_of_a_mean_of_nothing_no_difference_is_a_share_and_of_a_negative_one_it_keeps_its_sign():
    (found,) = compare({"a": {"0": -1.0, "1": 1.0}, "b": {"0": 2.0, "1": 3.0}}, [("b", "a")], 0.95, 2)
    assert found.percent is None and found.mean == 2.5
    (found,) = compare({"a": {"0": -2.0, "1": -2.2}, "b": {"0": -1.0, "1": -1.1}}, [("b", "a")], 0.95, 2)
    assert found.mean > 0 and found.percent == pytest.approx(50)


def test_what_one_comparison_alone_would_show_is_not_shown_among_many():
    """Of twenty comparisons of equal arms one has p below 0.05."""
    reference = {"0": 1.00, "1": 1.20, "2": 1.10, "3": 1.30}
    values = {
        "reference": reference,
        "one": {"0": 0.90, "1": 1.15, "2": 0.97, "3": 1.27},
        "two": {"0": 1.01, "1": 1.19, "2": 1.12, "3": 1.28},
        "three": {"0": 0.98, "1": 1.21, "2": 1.09, "3": 1.32},
    }
    (alone,) = compare({"reference": reference, "one": values["one"]}, [("one", "reference")], 0.95, 3)
    assert alone.better and alone.p is not None and alone.p_adjusted == alone.p < 0.05
    among, *others = compare(values, [(arm, "reference") for arm in ("one", "two", "three")], 0.95, 3)
    assert among.p == alone.p and among.p_adjusted == pytest.approx(3 * alone.p) and among.p_adjusted > 0.05
    assert not among.better and not any(one.better or one.worse for one in others)


def test_the_comparisons_of_all_tables_of_a_report_are_corrected_together():
    """A report with two tables of three comparisons makes six."""
    tables = {
        name: {
            arm: values_with(mean, 0.1, 10 * place + number)
            for number, (arm, mean) in enumerate(zip("abc", (1, 1.1, 2), strict=True))
        }
        for place, name in enumerate(("inside", "outside"))
    }
    pairs = [("b", "a"), ("c", "a"), ("c", "b")]
    metric = Metric(higher=False, pairs=[[*pair] for pair in pairs])
    found = compared.compare(tables, dict.fromkeys(tables, metric), 0.95, 3).differences
    assert [[(one.arm, one.reference) for one in of_table] for of_table in found.values()] == [pairs] * 2
    every = sorted((one for of_table in found.values() for one in of_table), key=lambda one: one.p)
    assert every[0].p_adjusted == pytest.approx(6 * every[0].p) and every[-1].p_adjusted >= every[-1].p
    alone = compare(tables["inside"], pairs, 0.95, 3)
    assert [one.p for one in alone] == [one.p for one in found["inside"]]
    assert all(one.p_adjusted <= other.p_adjusted for one, other in zip(alone, found["inside"], strict=True))
    assert all(one.seeds_needed <= other.seeds_needed for one, other in zip(alone, found["inside"], strict=True))


def test_what_seeds_agree_on_is_not_shown_where_other_sources_would_differ():
    """Three seeds that say nearly the same of few texts know little of other texts."""
    values = {"a": {"0": 1.0, "1": 1.01, "2": 0.99}, "b": {"0": 2.0, "1": 2.02, "2": 2.01}}
    pairs = [("a", "b"), ("b", "a")]
    rows = compare(values, pairs, 0.95, 3)
    assert rows[0].better and rows[1].worse
    sure, unsure = (
        [[np.array([-1.0, *others]) / 4, np.full(4, 0.25)] for others in ((-1, -1, -1 - seed), (-9, 8, -2 + seed))]
        for seed in (0.01, 0.02)
    )
    for columns, shown in (([sure[0], unsure[0], sure[0]], True), ([sure[1], unsure[1], sure[1]], False)):
        of = over_seeds(lambda total, count: total / count, columns, 0.95)
        again = compare(values, pairs, 0.95, 3, sources={"": {pairs[0]: of}})
        (alone,) = compare(values, pairs[:1], 0.95, 3, sources={"": {pairs[0]: of}})
        assert alone.smallest_shown < again[0].smallest_shown, "of what is found among many"
        assert again[0].better == shown and (again[0].interval, again[0].p) == (of.interval, of.p_value)
        assert again[1].worse and again[1].interval == rows[1].interval


def test_the_smallest_is_multiplied_by_all_and_none_falls_below_the_one_before():
    found = holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    # sorted 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1 -> 0.04 is raised to 0.06
    assert found == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})
    assert list(found) == ["a", "b", "c", "d"]


def test_one_is_left_as_it_is_and_none_exceeds_1():
    assert holm({"a": 0.03}) == {"a": 0.03}
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_what_is_no_p_value_is_refused_by_name(p):
    with pytest.raises(ValueError, match="the p-value of b is"):
        holm({"a": 0.5, "b": p})
