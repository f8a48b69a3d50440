"""Bootstrap intervals of numbers that are functions of sums over sources.

Rows of one source (docstrings of one file) resemble each other, so whole sources are resampled, with all of their
columns together. Few sources, like few clusters (Cameron, Gelbach and Miller 2008), make usual intervals too narrow:
BCa's nominal 95 % are 86 % with ten skewed ones. Bootstrap-t, in which every resample has the standard error of its own
jackknife (Efron and Tibshirani 1993, chapter 12), covers nearly as much as it says where sources are alike, and too
little (90 %) where some hold far more tokens than others; the percentile interval, expanded for few sources (Hesterberg
2015), errs elsewhere. So the wider of both counts at either end. Where a statistic has kinks, the jackknife of a
resample knows little, and Student's t stands in place of bootstrap-t. docs/results.md has what they cover.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import norm, t

from tasks.findings.statistics.power import smallest_shown
from tasks.stage.result import Result

RESAMPLING_SEED = 0
"""The seed is fixed, as resampling is part of the result: an interval is a function of the records."""

NO_SPREAD = 1e-12
"""Leave-one-out values that are closer than this, on the scale of the value or of 1, differ by rounding only."""

MOST_WITHOUT_SPREAD = 0.005
"""Share of resamples without a standard error (one source drawn again and again) beyond which bootstrap-t is not used:
three or four sources, or all but one of them alike."""

DRAWN_AT_ONCE = 2**22
"""Numbers drawn at a time, whatever there is to draw: a quantity of memory, without influence on what is drawn."""

Statistic = Callable[..., Any]
"""Takes the total of each column, as arrays of any one shape, and returns an array of that shape."""


class Estimate(Result):
    """A number with its interval [low, high], which documents of a single source do not give.

    `p_value` is two-sided, of the hypothesis that the number is 0; None where it was not tested. `smallest_shown`: from
    0 a number as far as this is told apart with a chance of 80 % (`power.smallest_shown`).
    """

    value: float
    interval: list[float] | None
    p_value: float | None = None
    smallest_shown: float | None = None


def sums_by_source(
    rows: Sequence[dict[str, Any]], columns: Sequence[str], sources: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Column -> its sum over the rows of each source, float64 [sources]; 0 for a source without rows.

    Sources are in the given order, else in the order of their names. Rows are added in the order of `example_id`, so
    that the order of the records changes no bit.
    """
    names = sorted({row["source"] for row in rows}) if sources is None else sources
    place = {source: number for number, source in enumerate(names)}
    sums = {column: np.zeros(len(place)) for column in columns}
    for row in sorted(rows, key=lambda row: row["example_id"]):
        for column, values in sums.items():
            values[place[row["source"]]] += row[column]
    return sums


def estimate(
    statistic: Statistic,
    columns: Sequence[np.ndarray],
    resamples: int,
    confidence_level: float,
    *,
    smooth: bool = True,
) -> Estimate:
    """`statistic(*totals)` with its `interval`, and what it could show, unless so few sources can show nothing."""
    bounds = interval(statistic, columns, resamples, confidence_level, smooth=smooth)
    sources = len(columns[0])
    too_few = 2.0 ** (1 - sources) > 1 - confidence_level  # all exchanges of them, see permutation.least_p_value
    return Estimate(
        value=float(statistic(*(column.sum() for column in columns))),
        interval=bounds,
        smallest_shown=None
        if bounds is None or bounds[0] == bounds[1] or too_few
        else smallest_shown([(standard_error(_leave_one_out(statistic, columns)), sources - 1)], confidence_level),
    )


def interval(
    statistic: Statistic,
    columns: Sequence[np.ndarray],
    resamples: int,
    confidence_level: float,
    *,
    smooth: bool = True,
) -> list[float] | None:
    """Bootstrap interval [low, high] of `statistic(*totals)`; None for fewer than two sources, which give none.

    `columns` are float64 [sources] each; `smooth`: the statistic has no kinks. Intervals of several levels
    are quantiles of the same resamples. Time is linear in the number of sources, and so is memory.
    """
    sources = len(columns[0])
    if sources < 2:
        return None
    value = float(statistic(*(column.sum() for column in columns)))
    left_out = _leave_one_out(statistic, columns)
    if np.ptp(left_out) <= NO_SPREAD * max(1.0, abs(value)):
        return [value, value]  # no resample differs either
    tails = np.array([1 - confidence_level, 1 + confidence_level]) / 2
    if smooth:
        low, high = bootstrap_t(statistic, columns, value, left_out, resamples, tails)
    else:
        low, high = value + standard_error(left_out) * t.ppf(tails, sources - 1)
    lowest, highest = expanded_percentile(statistic, columns, resamples, tails)
    return [float(min(low, lowest)), float(max(high, highest))]


def expanded_percentile(
    statistic: Statistic, columns: Sequence[np.ndarray], resamples: int, tails: np.ndarray
) -> np.ndarray:
    """Bounds at the probabilities `tails`, float64 [2]: percentiles of the resampled values, further out, as
    Student's t and the deviation of n - 1 are beyond the normal and that of n (Hesterberg 2015)."""
    sources = len(columns[0])
    further = norm.cdf((sources / (sources - 1)) ** 0.5 * t.ppf(tails, sources - 1))
    return np.quantile(_resample(statistic, columns, resamples), further)


def _leave_one_out(statistic: Statistic, columns: Sequence[np.ndarray]) -> np.ndarray:
    """The statistic without one source each, float64 [sources]."""
    return np.asarray(statistic(*(column.sum() - column for column in columns)))


def standard_error(left_out: np.ndarray) -> float:
    """The jackknife's standard error, from the values without one source each, float64 [sources]."""
    sources = len(left_out)
    return float(np.sqrt((sources - 1) / sources * np.square(left_out - left_out.mean()).sum()))


def bootstrap_t(
    statistic: Statistic,
    columns: Sequence[np.ndarray],
    value: float,
    left_out: np.ndarray,
    resamples: int,
    tails: np.ndarray,
) -> np.ndarray:
    """Bounds at the probabilities `tails`, float64 [2]; `left_out` are the values without one source each.

    Where too many resamples have no spread: by Student's t and the jackknife's standard error.
    """
    error, sources = standard_error(left_out), len(columns[0])
    studentised = np.concatenate(
        [_studentise(statistic, columns, value, counts) for counts in _draw_counts(sources, resamples)]
    )
    if len(studentised) < (1 - MOST_WITHOUT_SPREAD) * resamples:
        return value + error * t.ppf(tails, sources - 1)
    return value - error * np.quantile(studentised, tails[::-1])


def _studentise(statistic: Statistic, columns: Sequence[np.ndarray], value: float, counts_RS: np.ndarray) -> np.ndarray:
    """(resampled value - value) / jackknife standard error of the resample, of those that have one."""
    totals, drawn_RS, sources = _totals(counts_RS, columns), counts_RS > 0, counts_RS.shape[1]
    left_out_RS = statistic(
        *(total[:, None] - drawn_RS * column for total, column in zip(totals, columns, strict=True))
    )
    means = (counts_RS * left_out_RS).sum(axis=1) / sources
    squares = (counts_RS * np.square(left_out_RS - means[:, None])).sum(axis=1)
    errors = np.sqrt((sources - 1) / sources * squares)
    spread = errors > NO_SPREAD * max(1.0, abs(value))
    return (statistic(*totals) - value)[spread] / errors[spread]


def _resample(statistic: Statistic, columns: Sequence[np.ndarray], resamples: int) -> np.ndarray:
    """The statistic of each resample."""
    parts = _draw_counts(len(columns[0]), resamples)
    return np.concatenate([statistic(*_totals(counts, columns)) for counts in parts])


def _totals(counts_RS: np.ndarray, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Total of each column in each resample. Not by BLAS, whose sums depend on the number of threads."""
    return [np.einsum("rs,s->r", counts_RS, column) for column in columns]


def _draw_counts(sources: int, resamples: int) -> Iterator[np.ndarray]:
    """The number of times that each resample draws each source, float64 [resamples of a part, sources]."""
    chance = np.random.default_rng(RESAMPLING_SEED)
    part = max(1, DRAWN_AT_ONCE // sources)
    for start in range(0, resamples, part):
        number = min(part, resamples - start)
        drawn = chance.integers(0, sources, (number, sources)) + sources * np.arange(number)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=number * sources).reshape(number, sources)
        yield counts.astype(np.float64)
