"""Statistics of a stream: exact, the same however it is cut, and in bounded memory."""

import math
import tracemalloc
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest

from tasks.data.statistics import Column, ColumnSums, column_statistics

NAMES = ["time", "charge"]


def mixed(rows: int, seed: int = 0) -> np.ndarray:
    """Values of both signs over 80 orders of magnitude, with zeros and subnormals among them."""
    chance = np.random.default_rng(seed)
    values = (chance.normal(size=rows) * 10.0 ** chance.uniform(-44, 37, rows)).astype(np.float32)
    values[::17] = 0.0
    values[1::17] = np.float32(1e-45)
    return values


def of_one(values: np.ndarray) -> Column:
    sums = ColumnSums()
    sums.add(values)
    return sums.column("x")


@pytest.mark.parametrize("seed", range(3))
def test_mean_and_deviation_are_the_nearest_floats_to_the_exact_ones(seed):
    values = mixed(500, seed)
    exact = [Fraction(float(value)) for value in values]
    mean = sum(exact) / len(exact)
    variance = sum((value - mean) ** 2 for value in exact) / (len(exact) - 1)
    found = of_one(values)
    assert found.mean == float(mean)
    assert found.deviation == pytest.approx(math.sqrt(variance), rel=1e-15)


def test_a_large_offset_takes_no_digit_of_the_deviation():
    """The sum of squares minus the square of the sum, in float64, gives 0.0 or worse here."""
    values = np.tile(np.array([77785.0, 77785.0078125], dtype=np.float32), 50_000)
    assert of_one(values).deviation == pytest.approx(0.0078125 / 2 * math.sqrt(100_000 / 99_999), rel=1e-12)


def test_no_bit_depends_on_the_order_or_on_how_the_rows_were_cut():
    rows = np.stack([mixed(3001), mixed(3001, 1)], axis=1)
    rows[5, 1], rows[6, 1] = np.nan, np.inf
    whole = column_statistics([rows], NAMES)
    chance = np.random.default_rng(2)
    for cuts in ([1], [17, 400, 401], sorted(chance.integers(0, 3001, 50))):
        shuffled = chance.permutation(rows)
        assert column_statistics(np.split(shuffled, cuts), NAMES) == whole


def test_what_is_not_finite_is_counted_and_in_no_other_number():
    found = of_one(np.array([1, np.nan, 2, np.inf, -np.inf, 3], dtype=np.float32))
    assert (found.count, found.not_finite) == (6, 3)
    assert (found.minimum, found.maximum, found.mean, found.deviation) == (1.0, 3.0, 2.0, 1.0)
    nothing = of_one(np.full(4, np.nan, dtype=np.float32))
    assert (nothing.count, nothing.not_finite, nothing.mean) == (4, 4, None)
    assert not nothing.constant


@pytest.mark.parametrize("value", [0.0, -3.25, 1e-45, 3.4e38])
def test_a_constant_is_one(value):
    found = of_one(np.full(1000, value, dtype=np.float32))
    assert found.constant and found.deviation == 0.0 and found.mean == found.minimum
    assert not of_one(np.array([value, 1.0], dtype=np.float32)).constant


def test_extremes_are_the_file_s_and_the_rest_is_of_what_fp32_keeps():
    found = of_one(np.array([1e9 - 1, 1e9, 1e9 + 1, 1e300]))
    assert (found.minimum, found.maximum, found.mean, found.not_finite) == (1e9 - 1, 1e9 + 1, 1e9, 1)


def test_minus_zero_is_zero_wherever_it_stands():
    """Their order would else be seen in the bytes of a result."""
    one, other = (of_one(np.array(values, dtype=np.float32)) for values in ([0.0, -0.0], [-0.0, 0.0]))
    assert one.model_dump_json() == other.model_dump_json() and "-0" not in one.model_dump_json()


@pytest.mark.parametrize("chunk", [np.zeros((3, 1), np.float32), np.zeros(3, np.float32), np.zeros((3, 2), np.int64)])
def test_a_chunk_of_another_form_is_refused(chunk):
    with pytest.raises(ValueError, match=r"chunk of the columns time, charge|a column is float64"):
        column_statistics([chunk], NAMES)


def test_three_million_rows_take_no_more_memory_than_one_chunk():
    """450 MB would lie there as Python numbers, 48 MB as one array: what is kept does not grow with the rows."""
    chunk = mixed(100_000).reshape(-1, 2)

    def chunks(number: int) -> Iterator[np.ndarray]:
        for _ in range(number):
            yield chunk

    def peak(number: int) -> int:
        tracemalloc.start()
        try:
            found = column_statistics(chunks(number), NAMES)
            assert found[0].count == number * len(chunk)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    few, many = peak(2), peak(60)
    assert many < 1.1 * few < 40e6
