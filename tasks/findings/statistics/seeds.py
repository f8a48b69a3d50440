"""Means over seeds with intervals. One seed has none."""

from collections.abc import Sequence, Sized
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import stdtrit
from scipy.stats import t

from tasks.findings.statistics.power import smallest_shown
from tasks.findings.statistics.resampling import NO_SPREAD, Estimate, Statistic, standard_error


class OverSeeds(Estimate):
    """A mean over seeds, of a training or of a search, whose interval knows of both: other seeds and other sources."""

    of_seeds: list[float]
    sources: int
    standard_error_of_seeds: float
    standard_error_of_sources: float | None
    confidence_level: float


def mean_over_seeds(values: Sequence[float] | np.ndarray, confidence_level: float) -> tuple[float, float, list[float]]:
    """Mean, sample standard deviation (n - 1) and Student's t interval [low, high] of one value a seed.

    Raises ValueError for fewer than two seeds: a single value has no interval.
    """
    _require_two(values)
    array = np.array(values, dtype=float)
    mean, deviation = float(array.mean()), float(array.std(ddof=1))
    half = float(t.ppf((1 + confidence_level) / 2, len(array) - 1)) * deviation / len(array) ** 0.5
    return mean, deviation, [mean - half, mean + half]


def over_seeds(statistic: Statistic, columns: Sequence[Sequence[np.ndarray]], confidence_level: float) -> OverSeeds:
    """Mean over seeds of `statistic(*totals)`, with an interval for other seeds and other sources.

    `columns` are those of each seed, float64 [sources] each, of the same sources in the same order. All seeds are
    judged on the same texts, so that what is peculiar to these texts does not cancel in the mean over seeds, and the
    spread between seeds does not show it. Both count (two-way clusters; Cameron, Gelbach and Miller 2011, without their
    subtraction, which matters little and can make a variance negative): the standard error of the mean over seeds, and
    the jackknife's over sources, left out of all seeds at once; `half_width` puts them together. A bootstrap of three
    seeds knows ten resamples of them and is narrower. `p_value` is one minus the level at which the interval reaches 0;
    both are None for one source. Raises ValueError for fewer than two seeds.
    """
    _require_two(columns)
    totals = [[column.sum() for column in of_seed] for of_seed in columns]
    of_seeds = np.array([float(statistic(*of_seed)) for of_seed in totals])
    mean, sources = float(of_seeds.mean()), len(columns[0][0])
    of_seed_error = float(of_seeds.std(ddof=1)) / len(of_seeds) ** 0.5
    shared: dict[str, Any] = {
        "value": mean,
        "of_seeds": of_seeds.tolist(),
        "sources": sources,
        "standard_error_of_seeds": of_seed_error,
        "confidence_level": confidence_level,
    }
    if sources < 2:
        return OverSeeds(**shared, interval=None, standard_error_of_sources=None)
    left_out = [
        statistic(*(total - column for total, column in zip(totals_of, of_seed, strict=True)))
        for totals_of, of_seed in zip(totals, columns, strict=True)
    ]
    source_error = standard_error(np.mean(left_out, axis=0))
    parts = [(of_seed_error, len(of_seeds) - 1), (source_error, sources - 1)]
    if np.hypot(of_seed_error, source_error) <= NO_SPREAD * max(1.0, abs(mean)):
        return OverSeeds(**shared, interval=[mean, mean], standard_error_of_sources=source_error)
    half = half_width(parts, 1 - confidence_level)
    return OverSeeds(
        **shared,
        interval=[mean - half, mean + half],
        p_value=_p_value(abs(mean), parts),
        smallest_shown=smallest_shown(parts, confidence_level),
        standard_error_of_sources=source_error,
    )


def half_width(parts: Sequence[tuple[float, float]], alpha: float) -> float:
    """Half the interval of a sum of independent parts, given by standard errors and degrees of freedom.

    The root of the summed squares of the parts' own half widths by Student's t (Howe 1974). Satterthwaite's degrees of
    freedom (1946) estimate which part is large from the same few seeds: where two or three seeds differ most, p below
    0.001 came up in 1 to 5 % of cases without a difference, and in less than 0.1 % by this.
    """
    return float(np.hypot.reduce([-stdtrit(freedom, alpha / 2) * error for error, freedom in parts]))


def _p_value(size: float, parts: Sequence[tuple[float, float]]) -> float:
    """The alpha at which half the interval is as wide as the mean is far from 0."""
    low = -200.0  # of the logarithm; far beyond it the quantiles of t are not finite
    if half_width(parts, np.exp(low)) <= size:
        return float(np.exp(low))
    return float(np.exp(brentq(lambda log: half_width(parts, np.exp(log)) - size, low, 0.0))) if size else 1.0


def _require_two(values: Sized) -> None:
    if len(values) < 2:
        raise ValueError(f"{len(values)} seed gives no interval: run two or more")
