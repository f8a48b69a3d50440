"""Statistics of the columns of a stream of numbers, in one pass and bounded memory: the same bits however it is cut.

The train split of a detector is 10^10 rows, read file by file, and a normaliser made of its statistics is part of a
result. So nothing here depends on the order of the rows or on how they came: sums of float32 values and of their
squares are exact (integers; a superaccumulator as of Neal, "Fast exact summation using small and large
superaccumulators", 2015).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tasks.stage.result import Result

UNIT = Fraction(1, 2**149)
"""The smallest float32 above 0: every other one is an integer times it."""
MANTISSA_BITS = 24
ROWS_AT_ONCE = 2**20
"""Far fewer than 2^29, beyond which a sum of mantissas is not exact in a float64."""


class Column(Result):
    """Statistics of a column. All but `count` and `not_finite` are of its finite values, None where there is none.

    The extremes are those of the file; the rest is of the values as fp32, which is what a network gets. `deviation` is
    the sample standard deviation (n - 1).
    """

    name: str
    count: int
    not_finite: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    deviation: float | None

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
    """Sums of one column so far: integers and extremes."""

    count: int = 0
    not_finite: int = 0
    minimum: float = float("inf")
    maximum: float = float("-inf")
    total: int = 0
    """In units of UNIT."""
    squares: int = 0
    """In units of UNIT^2."""

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
        )


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
