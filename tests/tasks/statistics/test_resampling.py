"""Sums over sources, and intervals of what is a function of them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tasks.statistics.resampling import interval, sums_by_source


def test_sums_are_of_the_rows_of_each_source_in_the_order_of_names():
    rows = [
        {"example_id": "1", "source": "b", "x": 1.0, "y": 5},
        {"example_id": "2", "source": "a", "x": 2.0, "y": 6},
        {"example_id": "3", "source": "b", "x": 4.0, "y": 7},
    ]
    sums = sums_by_source(rows, ("x", "y"))
    assert {name: values.tolist() for name, values in sums.items()} == {"x": [2.0, 5.0], "y": [6.0, 12.0]}


def test_the_order_of_the_records_changes_no_bit_of_a_sum():
    chance = np.random.default_rng(0)
    rows = [
        {"example_id": f"{i:03d}", "source": "s", "x": value}
        for i, value in enumerate(chance.normal(0, 1, 200) * 10.0 ** chance.integers(-8, 8, 200))
    ]
    shuffled = random.Random(1).sample(rows, len(rows))
    assert sum(row["x"] for row in rows) != sum(row["x"] for row in shuffled)
    assert sums_by_source(rows, ("x",))["x"][0] == sums_by_source(shuffled, ("x",))["x"][0]


def test_the_interval_of_a_mean_is_near_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(5.0, 1.0, 400)
    low, high = interval(lambda total, count: total / count, [values, np.ones(400)], 2000, 0.95)
    half = 1.96 * values.std() / 20
    assert [low, high] == pytest.approx([values.mean() - half, values.mean() + half], abs=0.01)


@pytest.mark.filterwarnings("error")
def test_values_that_differ_by_rounding_only_have_no_width():
    counts = np.array([3.0, 7.0, 11.0, 13.0])
    assert interval(lambda total, count: total / count, [0.1 * counts, counts], 100, 0.95) == pytest.approx([0.1, 0.1])
