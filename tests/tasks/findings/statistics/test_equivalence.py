"""Differs, equivalent within the margin, or undecided."""

import numpy as np
import pytest

from tasks.findings.statistics.equivalence import Answer, answer
from tasks.findings.statistics.permutation import least_p_value
from tasks.findings.statistics.resampling import Estimate, interval


def difference_of(mean: float, spread: float, sources: int = 12):
    values = np.random.default_rng(0).normal(0, 1, sources)
    values = mean + spread * (values - values.mean()) / values.std()

    def at(level: float) -> Estimate:
        columns = [values, np.ones(sources)]
        return Estimate(value=mean, interval=interval(lambda total, count: total / count, columns, 500, level))

    return at


def ask(mean: float, spread: float, margin: float = 0.1) -> Answer:
    return answer(difference_of(mean, spread), margin, 0.95)


@pytest.mark.parametrize(
    ("mean", "spread", "expected"),
    [
        (0.5, 0.1, "differs"),
        (-0.5, 0.1, "differs"),
        (0.001, 0.05, "equivalent"),
        (0.05, 0.01, "differs within the margin"),
        (0.05, 0.5, "undecided"),
        (0.1, 0.01, "differs"),  # on the margin is not within it
        (0.0, 0.0, "equivalent"),
    ],
)
def test_the_answer_follows_both_intervals(mean, spread, expected):
    assert ask(mean, spread).answer == expected


def test_the_equivalence_interval_is_of_1_minus_2_alpha_and_lies_within_the_other():
    found = ask(0.05, 0.1)
    assert found.equivalence_interval == pytest.approx(difference_of(0.05, 0.1)(0.9).interval)
    low, high = found.interval
    assert low < found.equivalence_interval[0] < found.difference < found.equivalence_interval[1] < high


def test_equivalence_needs_both_tests():
    """Sure to be below the margin, and not sure to be above -margin."""
    found = answer(lambda _: Estimate(value=-0.08, interval=[-0.14, 0.01]), 0.1, 0.95)
    assert found.answer == "undecided"


@pytest.mark.parametrize(
    ("p_value", "expected"), [(None, "differs"), (0.05, "differs"), (0.051, "undecided"), (0.4, "undecided")]
)
def test_an_interval_without_zero_is_no_difference_where_exchanges_give_one_as_large(p_value, expected):
    found = answer(lambda _: Estimate(value=0.5, interval=[0.3, 0.7], p_value=p_value), 0.1, 0.95)
    assert (found.answer, found.p_value) == (expected, p_value)


def test_a_p_value_above_the_level_leaves_equivalence_as_it_is():
    found = answer(lambda _: Estimate(value=0.05, interval=[0.03, 0.07], p_value=0.2), 0.1, 0.95)
    assert found.answer == "equivalent"


@pytest.mark.parametrize("interval", [[0.3, 0.7], [-0.01, 0.01]])
@pytest.mark.parametrize(("sources", "decided"), [(2, False), (4, False), (5, False), (6, True), (40, True)])
def test_so_few_sources_that_no_exchange_shows_anything_decide_nothing(interval, sources, decided):
    """With four sources 2 / 2^4 = 0.125, however far apart two models are."""
    found = answer(lambda _: Estimate(value=0.5, interval=interval), 0.1, 0.95, least_p_value(sources))
    assert (found.answer != "undecided") == decided and found.too_few_sources != decided


def test_one_source_decides_nothing():
    found = answer(lambda _: Estimate(value=5.0, interval=None), 0.1, 0.95)
    assert (found.answer, found.interval, found.equivalence_interval) == ("undecided", None, None)


@pytest.mark.parametrize(("margin", "level"), [(0.0, 0.95), (0.1, 0.5), (float("nan"), 0.95)])
def test_what_makes_no_sense_is_refused(margin, level):
    with pytest.raises(ValueError, match="must be positive"):
        answer(difference_of(0, 1), margin, level)


def test_two_models_that_are_equal_are_called_equivalent_and_seldom_different():
    chance = np.random.default_rng(0)
    answers = []
    for _ in range(200):
        columns = [chance.normal(0, 0.1, 20), np.ones(20)]

        def at(level: float, columns: list[np.ndarray] = columns) -> Estimate:
            bounds = interval(lambda total, count: total / count, columns, 300, level)
            return Estimate(value=float(columns[0].mean()), interval=bounds)

        answers.append(answer(at, 0.1, 0.95).answer)
    assert answers.count("equivalent") > 180
    assert answers.count("differs") <= 1
