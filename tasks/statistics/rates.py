"""Rates over sources, with intervals that do not vanish where nothing was hit.

A bootstrap has nothing to resample when every source has the same rate: no success in 40 texts would get an interval
without width. There the exact binomial interval stands instead, each source counted once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import binomtest

from tasks.statistics.resampling import interval


def rate(hits: np.ndarray, trials: np.ndarray, resamples: int, confidence_level: float) -> dict[str, Any]:
    """{"value", "interval"} of sum(hits) / sum(trials), both float64 [sources]: bootstrap over sources.

    Where every source has the same rate, Clopper and Pearson's exact interval (1934) for as many trials as sources.
    """
    value = float(hits.sum() / trials.sum())
    bounds = interval(lambda hit, tried: hit / tried, [hits, trials], resamples, confidence_level)
    if bounds is not None and bounds[0] == bounds[1]:
        exact = binomtest(round(value * len(trials)), len(trials)).proportion_ci(confidence_level, method="exact")
        bounds = [min(float(exact.low), value), max(float(exact.high), value)]
    return {"value": value, "interval": bounds}


def rate_difference(
    hits: np.ndarray, reference: np.ndarray, trials: np.ndarray, resamples: int, confidence_level: float
) -> dict[str, Any]:
    """{"value", "interval"} of the rate of `hits` minus that of `reference`, on the same trials (paired).

    Where no resample differs, both rates' own intervals are combined (Newcombe 1998, method 10; without the
    correlation, so rather too wide).
    """
    value = float((hits - reference).sum() / trials.sum())
    bounds = interval(
        lambda difference, tried: difference / tried, [hits - reference, trials], resamples, confidence_level
    )
    if bounds is not None and bounds[0] == bounds[1]:
        one, other = (rate(each, trials, resamples, confidence_level) for each in (hits, reference))
        (low, high), (other_low, other_high) = one["interval"], other["interval"]
        bounds = [
            value - float(np.hypot(one["value"] - low, other_high - other["value"])),
            value + float(np.hypot(high - one["value"], other["value"] - other_low)),
        ]
    return {"value": value, "interval": bounds}
