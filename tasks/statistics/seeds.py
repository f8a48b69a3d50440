"""Means over seeds with intervals. One seed has none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import t

from tasks.stage.result import Result
from tasks.statistics.power import smallest_shown
from tasks.statistics.resampling import NO_SPREAD, Estimate, Statistic, standard_error


class MeanOverSeeds(Result):
    """A mean over seeds with Student's t interval [low, high]."""

    mean: float
    standard_deviation: float
    interval: list[float]
    confidence_level: float
    seeds: int


class OverSeeds(Estimate):
    """A mean over seeds, of a training or of a search, whose interval knows of both: other seeds and other sources."""

    of_seeds: list[float]
    sources: int
    standard_error_of_seeds: float
    standard_error_of_sources: float | None
    degrees_of_freedom: float | None
    confidence_level: float


def mean_over_seeds(values: Sequence[float], confidence_level: float) -> MeanOverSeeds:
    """Mean, sample standard deviation (n - 1) and Student's t interval of one value a seed.

    Raises ValueError for fewer than two seeds: a single value has no interval.
    """
    _require_two(values)
    array = np.array(values, dtype=float)
    deviation = float(array.std(ddof=1))
    half = float(t.ppf((1 + confidence_level) / 2, len(array) - 1)) * deviation / len(array) ** 0.5
    mean = float(array.mean())
    return MeanOverSeeds(
        mean=mean,
        standard_deviation=deviation,
        interval=[mean - half, mean + half],
        confidence_level=confidence_level,
        seeds=len(array),
    )


def over_seeds(statistic: Statistic, columns: Sequence[Sequence[np.ndarray]], confidence_level: float) -> OverSeeds:
    """Mean over seeds of `statistic(*totals)`, with an interval for other seeds and other sources.

    `columns` are those of each seed, float64 [sources] each, of the same sources in the same order. All seeds are
    judged on the same texts, so that what is peculiar to these texts does not cancel in the mean over seeds, and the
    spread between seeds does not show it. The two variances are therefore added (two-way clusters; Cameron, Gelbach
    and Miller 2011, without their subtraction, which matters little and can make a variance negative): that of the mean
    over seeds, and the jackknife's over sources, left out of all seeds at once. The interval is Student's t, its
    degrees of freedom Satterthwaite's (1946): with three seeds about 2 where seeds differ most, up to sources - 1 where
    sources do. A bootstrap of three seeds knows ten resamples of them and is narrower. `p_value` is of the same t; both
    are None for one source. Raises ValueError for fewer than two seeds.
    """
    _require_two(columns)
    totals = [[column.sum() for column in of_seed] for of_seed in columns]
    of_seeds = np.array([float(statistic(*of_seed)) for of_seed in totals])
    mean, sources = float(of_seeds.mean()), len(columns[0][0])
    of_seed_error = float(of_seeds.std(ddof=1)) / len(of_seeds) ** 0.5
    known: dict[str, Any] = {
        "value": mean,
        "of_seeds": of_seeds.tolist(),
        "sources": sources,
        "standard_error_of_seeds": of_seed_error,
        "confidence_level": confidence_level,
    }
    if sources < 2:
        return OverSeeds(**known, interval=None, standard_error_of_sources=None, degrees_of_freedom=None)
    left_out = [
        statistic(*(total - column for total, column in zip(total_of, of_seed, strict=True)))
        for total_of, of_seed in zip(totals, columns, strict=True)
    ]
    source_error = standard_error(np.mean(left_out, axis=0))
    variances = np.square([of_seed_error, source_error])
    error = float(np.sqrt(variances.sum()))
    if error <= NO_SPREAD * max(1.0, abs(mean)):
        alike: dict[str, Any] = {"standard_error_of_sources": source_error, "degrees_of_freedom": None}
        return OverSeeds(**known, **alike, interval=[mean, mean])
    freedom = float(variances.sum() ** 2 / (variances**2 / [len(of_seeds) - 1, sources - 1]).sum())
    half = error * float(t.ppf((1 + confidence_level) / 2, freedom))
    return OverSeeds(
        **known,
        interval=[mean - half, mean + half],
        p_value=2 * float(t.sf(abs(mean) / error, freedom)),
        smallest_shown=smallest_shown(error, freedom, confidence_level),
        standard_error_of_sources=source_error,
        degrees_of_freedom=freedom,
    )


def _require_two(values: Sequence[Any]) -> None:
    if len(values) < 2:
        raise ValueError(f"{len(values)} seed gives no interval: run two or more")
