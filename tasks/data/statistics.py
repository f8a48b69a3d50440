"""Statistics of the columns of a stream of numbers, in one pass and bounded memory: the same bits however it is cut.

The train split of a detector is 10^10 rows, read file by file, and a normaliser made of its statistics is part of a
result. So nothing here depends on the order of the rows or on how they came: sums of float32 values and of their
squares are exact (integers; a superaccumulator as of Neal, "Fast exact summation using small and large
superaccumulators", 2015), and quantiles come from counts by the upper half of a float's bits. Two halves of a stream,
read by two processes, merge to what one would have found.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Self

import numpy as np

from tasks.stage.result import Result

UNIT = Fraction(1, 2**149)
"""The smallest float32 above 0: every other one is an integer times it."""
MANTISSA_BITS = 24
ROWS_AT_ONCE = 2**20
"""Far fewer than 2^29, beyond which a sum of mantissas is not exact in a float64."""
BINS = 2**16
"""Floats that share their upper 16 bits (sign, exponent, 7 bits of the mantissa) are counted together: 0.8 % apart."""
QUANTILES = (0.001, 0.01, 0.25, 0.5, 0.75, 0.99, 0.999)


class Column(Result):
    """Statistics of a column. All but `count` and `not_finite` are of its finite values, None where there is none.

    The extremes are those of the file; the rest is of the values as fp32, which is what a network gets. `deviation` is
    the sample standard deviation (n - 1). `quantiles`, by probability, are right to within 0.4 %.
    """

    name: str
    count: int
    not_finite: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    deviation: float | None
    quantiles: dict[str, float]

    @property
    def constant(self) -> bool:
        return self.minimum is not None and self.minimum == self.maximum

    @property
    def rounded_away(self) -> bool:
        """True where fp32 at this size has steps wider than the values' spread: 64 at 1e9."""
        if self.minimum is None or self.maximum is None or self.deviation is None or self.constant:
            return False
        return self.deviation < float(np.spacing(np.float32(max(-self.minimum, self.maximum))))


@dataclass
class ColumnSums:
    """Sums of one column so far: integers and extremes, so that merging loses nothing."""

    count: int = 0
    not_finite: int = 0
    minimum: float = float("inf")
    maximum: float = float("-inf")
    total: int = 0
    """In units of UNIT."""
    squares: int = 0
    """In units of UNIT^2."""
    bins: np.ndarray = field(default_factory=lambda: np.zeros(BINS, dtype=np.int64))

    def add(self, values: np.ndarray) -> None:
        """`values` are float64 or float32 [rows], of any number."""
        if values.dtype not in (np.float32, np.float64) or values.ndim != 1:
            raise ValueError(f"a column is float64 or float32 [rows], and this is {values.dtype} {list(values.shape)}")
        for start in range(0, len(values), ROWS_AT_ONCE):
            self._add(values[start : start + ROWS_AT_ONCE])

    def _add(self, values: np.ndarray) -> None:
        with np.errstate(over="ignore"):
            rounded = values.astype(np.float32)
        sound = np.isfinite(rounded)
        finite = rounded[sound] + np.float32(0)  # makes -0 the same as 0
        self.count += len(values)
        self.not_finite += len(values) - len(finite)
        if not len(finite):
            return
        self.minimum = min(self.minimum, float(values[sound].min()) + 0.0)
        self.maximum = max(self.maximum, float(values[sound].max()) + 0.0)
        total, squares = _exact_sums(finite)
        self.total += total
        self.squares += squares
        self.bins += np.bincount(_bin_of(finite), minlength=BINS)

    def merge(self, other: Self) -> None:
        """Adds all that `other` has seen."""
        self.count += other.count
        self.not_finite += other.not_finite
        self.minimum = min(self.minimum, other.minimum)
        self.maximum = max(self.maximum, other.maximum)
        self.total += other.total
        self.squares += other.squares
        self.bins += other.bins

    def column(self, name: str) -> Column:
        """The statistics, under the column's name."""
        finite = self.count - self.not_finite
        mean = Fraction(self.total, finite) * UNIT if finite else None
        spread = Fraction(finite * self.squares - self.total**2, finite * max(1, finite - 1)) if finite else None
        return Column(
            name=name,
            count=self.count,
            not_finite=self.not_finite,
            minimum=self.minimum if finite else None,
            maximum=self.maximum if finite else None,
            mean=None if mean is None else float(mean),
            deviation=None if spread is None else float(spread * UNIT**2) ** 0.5,
            quantiles={f"{share:g}": self._quantile(share) for share in QUANTILES} if finite else {},
        )

    def _quantile(self, share: float) -> float:
        """The middle of the bin in which the value of this rank lies."""
        seen = np.cumsum(self.bins)
        place = int(np.searchsorted(seen, share * seen[-1]))
        further_from_0 = place + 1 if place >= BINS // 2 else place - 1
        ends = _edges(np.array([place, further_from_0])).astype(np.float64)
        return min(max(float(ends.mean()), self.minimum), self.maximum)


def column_statistics(chunks: Iterable[np.ndarray], names: Sequence[str]) -> list[Column]:
    """The columns of all rows of `chunks`, float64 or float32 [rows, columns] each, in one pass.

    Raises ValueError where a chunk has another form.
    """
    sums = [ColumnSums() for _ in names]
    for chunk in chunks:
        if chunk.ndim != 2 or chunk.shape[1] != len(names):
            raise ValueError(f"a chunk of the columns {', '.join(names)} is {list(chunk.shape)}")
        for column, of_column in zip(chunk.T, sums, strict=True):
            of_column.add(np.ascontiguousarray(column))
    return [of_column.column(name) for name, of_column in zip(names, sums, strict=True)]


def _exact_sums(finite: np.ndarray) -> tuple[int, int]:
    """The sums of float32 values and of their squares, in units of UNIT and of UNIT^2.

    Values of one exponent are integers of 24 bits times one power of two, and a float64 holds their sum exactly; the
    squares of these integers are added in two halves.
    """
    bits = finite.view(np.uint32)
    exponent = (bits >> 23 & 0xFF).astype(np.int64)
    mantissa = np.where(exponent > 0, bits & 0x7FFFFF | 0x800000, bits & 0x7FFFFF).astype(np.int64)
    shift = np.maximum(exponent, 1) - 1  # subnormal numbers have the unit of the smallest normal ones
    square = mantissa * mantissa
    parts = (np.where(finite < 0, -mantissa, mantissa), square >> MANTISSA_BITS, square & 2**MANTISSA_BITS - 1)
    total = squares = 0
    by_shift = np.stack([np.bincount(shift, weights=part) for part in parts], axis=1).tolist()
    for shifted, (sum_, upper, lower) in enumerate(by_shift):
        total += int(sum_) << shifted
        squares += ((int(upper) << MANTISSA_BITS) + int(lower)) << 2 * shifted
    return total, squares


def _bin_of(finite: np.ndarray) -> np.ndarray:
    """The number of each value's bin, int64 [rows]; a larger value has no smaller number."""
    bits = (finite.view(np.uint32) >> 16).astype(np.int64)
    return np.where(bits >= BINS // 2, BINS - 1 - bits, bits + BINS // 2)


def _edges(bins: np.ndarray) -> np.ndarray:
    """The value of each bin that is nearest to 0, float32; of the one beyond the last finite bin, infinity."""
    bits = np.where(bins >= BINS // 2, bins - BINS // 2, BINS - 1 - bins).astype(np.uint32)
    return (bits << 16).view(np.float32)
