"""Means over seeds with intervals. One seed has none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.stats import t

from tasks.stage.result import Result


class MeanOverSeeds(Result):
    """A mean over seeds with Student's t interval [low, high]."""

    mean: float
    standard_deviation: float
    interval: list[float]
    confidence_level: float
    seeds: int


def mean_over_seeds(values: Sequence[float], confidence_level: float) -> MeanOverSeeds:
    """Mean, sample standard deviation (n - 1) and Student's t interval of one value a seed.

    Raises ValueError for fewer than two seeds: a single value has no interval.
    """
    if len(values) < 2:
        raise ValueError(f"{len(values)} seed gives no interval: run two or more")
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
