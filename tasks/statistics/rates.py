"""Rates over sources, with intervals that do not vanish where nothing was hit.

A bootstrap knows only what it saw: with no success in any source its interval has no width, and with one success in
one source nearly none. The exact binomial interval, each source counted as one trial, knows how few sources there
were. So the interval reaches as far as the farther of the two.
"""

from __future__ import annotations

import numpy as np
from scipy.stats import binomtest

from tasks.statistics.resampling import Estimate, interval


def rate(hits: np.ndarray, trials: np.ndarray, resamples: int, confidence_level: float) -> Estimate:
    """sum(hits) / sum(trials), both float64 [sources], with its interval, which is None for one source.

    It spans the bootstrap over sources and Clopper and Pearson's exact interval (1934) for as many trials as sources.
    """
    value = float(hits.sum() / trials.sum())
    bounds = interval(lambda hit, tried: hit / tried, [hits, trials], resamples, confidence_level)
    if bounds is not None:
        exact = binomtest(round(value * len(trials)), len(trials)).proportion_ci(confidence_level, method="exact")
        bounds = [min(float(exact.low), bounds[0], value), max(float(exact.high), bounds[1], value)]
    return Estimate(value=value, interval=bounds)


def rate_difference(
    hits: np.ndarray, reference: np.ndarray, trials: np.ndarray, resamples: int, confidence_level: float
) -> Estimate:
    """The rate of `hits` minus that of `reference`, on the same trials (paired).

    It spans the paired bootstrap and what the intervals of two shares give: that of the texts which only `hits` has,
    less that which only `reference` has, counted net in each source (combined as by Newcombe 1998, method 10).
    """
    value = float((hits - reference).sum() / trials.sum())
    bounds = interval(
        lambda difference, tried: difference / tried, [hits - reference, trials], resamples, confidence_level
    )
    if bounds is not None:
        net = (np.maximum(hits - reference, 0.0), np.maximum(reference - hits, 0.0))
        one, other = (rate(each, trials, resamples, confidence_level) for each in net)
        assert one.interval is not None and other.interval is not None, "of the same sources as the bootstrap"
        (low, high), (other_low, other_high) = one.interval, other.interval
        bounds = [
            min(bounds[0], value - float(np.hypot(one.value - low, other_high - other.value))),
            max(bounds[1], value + float(np.hypot(high - one.value, other.value - other_low))),
        ]
    return Estimate(value=value, interval=bounds)
