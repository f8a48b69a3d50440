"""Sums over sources, and intervals of what is a function of them."""

import random
import tracemalloc
from typing import Any

import numpy as np
import pytest
from scipy.stats import bootstrap, t

from tasks.findings.statistics import resampling
from tasks.findings.statistics.resampling import bootstrap_t, interval, standard_error, sums_by_source

TAILS = np.array([0.025, 0.975])


def ratio(total: Any, count: Any) -> Any:
    return total / count


def skewed(chance: np.random.Generator, sources: int) -> list[np.ndarray]:
    """Sources of one to some documents with an exponential effect of mean 0.3; its sum and the tokens."""
    documents = 1 + chance.poisson(2, sources)
    tokens = documents * chance.integers(40, 90, sources)
    effect = chance.exponential(1.0, sources) - 0.7 + chance.normal(0, 0.5, sources) / np.sqrt(documents)
    return [tokens * effect, tokens.astype(float)]


def left_out(columns: list[np.ndarray]) -> np.ndarray:
    return ratio(*(column.sum() - column for column in columns))


def test_sums_are_of_the_rows_of_each_source_in_the_order_of_names():
    rows = [
        {"example_id": "1", "source": "b", "x": 1.0, "y": 5},
        {"example_id": "2", "source": "a", "x": 2.0, "y": 6},
        {"example_id": "3", "source": "b", "x": 4.0, "y": 7},
    ]
    sums = sums_by_source(rows, ("x", "y"))
    assert {name: values.tolist() for name, values in sums.items()} == {"x": [2.0, 5.0], "y": [6.0, 12.0]}
    assert sums_by_source(rows, ("x",), ["b", "c", "a"])["x"].tolist() == [5.0, 0.0, 2.0]


def test_the_order_of_the_records_changes_no_bit_of_a_sum():
    chance = np.random.default_rng(0)
    rows = [
        {"example_id": f"{i:03d}", "source": "s", "x": value}
        for i, value in enumerate(chance.normal(0, 1, 200) * 10.0 ** chance.integers(-8, 8, 200))
    ]
    shuffled = random.Random(1).sample(rows, len(rows))
    assert sum(row["x"] for row in rows) != sum(row["x"] for row in shuffled)
    assert sums_by_source(rows, ("x",))["x"][0] == sums_by_source(shuffled, ("x",))["x"][0]


@pytest.mark.parametrize("sources", [400, 1000])
def test_the_interval_of_a_mean_is_near_that_of_the_normal_distribution(sources):
    values = np.random.default_rng(0).normal(5.0, 1.0, sources)
    low, high = interval(ratio, [values, np.ones(sources)], 2000, 0.95)
    half = 1.96 * values.std() / sources**0.5
    assert [low, high] == pytest.approx([values.mean() - half, values.mean() + half], abs=0.01)


def test_the_jackknife_s_standard_error_of_a_mean_is_the_usual_one():
    values = np.random.default_rng(0).normal(5.0, 1.0, 12)
    found = standard_error(left_out([values, np.ones(12)]))
    assert found == pytest.approx(values.std(ddof=1) / 12**0.5, rel=1e-12)


@pytest.mark.parametrize("sources", [20, 1000])
def test_how_much_is_drawn_at_once_changes_no_bit(sources, monkeypatch):
    columns = skewed(np.random.default_rng(0), sources)
    whole = interval(ratio, columns, 300, 0.95)
    monkeypatch.setattr(resampling, "DRAWN_AT_ONCE", 7 * sources)
    assert interval(ratio, columns, 300, 0.95) == whole


def test_memory_is_bounded_at_many_sources():
    """Drawn at once, 300 resamples of 30,000 sources take 430 MB, with their jackknife."""
    columns = skewed(np.random.default_rng(0), 30_000)
    tracemalloc.start()
    interval(ratio, columns, 300, 0.95)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 240e6


def covered(method: Any, sources: int, studies: int) -> float:
    """Share of simulated studies whose 95 % interval holds the true effect."""
    chance = np.random.default_rng(1)
    hits = 0
    for _ in range(studies):
        low, high = method(skewed(chance, sources))
        hits += low <= 0.3 <= high
    return hits / studies


def by_interval(columns: list[np.ndarray]) -> Any:
    return interval(ratio, columns, 500, 0.95)


def by_bca(columns: list[np.ndarray]) -> Any:
    return bootstrap(
        tuple(columns),
        lambda total, count, axis: ratio(total.sum(axis=axis), count.sum(axis=axis)),
        paired=True,
        vectorized=True,
        n_resamples=500,
        method="BCa",
        rng=np.random.default_rng(resampling.RESAMPLING_SEED),
    ).confidence_interval


def test_nominal_95_percent_cover_at_ten_sources_and_bca_does_not():
    assert covered(by_interval, 10, 500) >= 0.91
    assert covered(by_bca, 10, 500) < 0.88


@pytest.mark.parametrize(("sources", "least"), [(5, 0.87), (20, 0.925), (31, 0.93)])
def test_nominal_95_percent_cover_nearly_as_often_of_few_skewed_sources(sources, least):
    assert covered(by_interval, sources, 400) >= least


@pytest.mark.parametrize("values", [[1.0, 2.0], [1.0, 2.0, 4.0], [0.0] * 19 + [1.0]])
def test_where_resamples_have_no_spread_student_s_t_stands(values):
    array = np.array(values)
    half = t.ppf(0.975, len(array) - 1) * array.std(ddof=1) / len(array) ** 0.5
    columns = [array, np.ones(len(array))]
    found = bootstrap_t(ratio, columns, float(array.mean()), left_out(columns), 500, TAILS)
    assert found == pytest.approx([array.mean() - half, array.mean() + half])


@pytest.mark.filterwarnings("error")
def test_values_that_differ_by_rounding_only_have_no_width():
    counts = np.array([3.0, 7.0, 11.0, 13.0])
    assert interval(ratio, [0.1 * counts, counts], 100, 0.95) == pytest.approx([0.1, 0.1])


@pytest.mark.filterwarnings("error")
def test_a_source_that_was_not_drawn_is_not_left_out():
    """Five times one of the others hold as many tokens as the last alone: without it there would be none."""
    found = interval(ratio, [np.array([1.0, 2.0, 3.0, 4.0, 9.0]), np.array([1.0, 1.0, 1.0, 1.0, 5.0])], 500, 0.95)
    assert np.isfinite(found).all()


def test_one_source_has_no_interval():
    assert interval(ratio, [np.ones(1), np.ones(1)], 100, 0.95) is None
