"""Rates over sources, with intervals that do not vanish where nothing was hit.

A bootstrap knows only what it saw: with no success in any source its interval has no width, and with one success in
one source nearly none. Both intervals here count sources as trials instead, which are few.
"""

import numpy as np
from scipy.stats import beta, t

from tasks.findings.statistics.permutation import exchange_p_value
from tasks.findings.statistics.resampling import Estimate, standard_error


def rate(hits: np.ndarray, trials: np.ndarray, confidence_level: float) -> Estimate:
    """sum(hits) / sum(trials), both float64 [sources], with its interval, which is None for one source.

    Clopper and Pearson's exact interval (1934) for the effective number of trials (Korn and Graubard 1998): so many as
    would have the variance that is seen between sources, and never more than there are sources.
    """
    value, sources = float(hits.sum() / trials.sum()), len(trials)
    if sources < 2:
        return Estimate(value=value, interval=None)
    variance = standard_error(_leave_one_out(hits, trials)) ** 2
    effective = min(sources, value * (1 - value) / variance) if variance > 0 else sources
    hit, tail = value * effective, (1 - confidence_level) / 2
    missed = effective - hit
    low = float(beta.ppf(tail, hit, missed + 1)) if value > 0 else 0.0
    high = float(beta.ppf(1 - tail, hit + 1, missed)) if value < 1 else 1.0
    return Estimate(value=value, interval=[low, high])


def rate_difference(hits: np.ndarray, reference: np.ndarray, trials: np.ndarray, confidence_level: float) -> Estimate:
    """The rate of `hits` minus that of `reference`, on the same trials (paired), with interval and p-value.

    Student's t and the jackknife's standard error, with two sources of average size added of which one hits all for
    the first and none for the second, the other the reverse (after Agresti and Min 2005, for pairs): so the interval
    has a width where no source differs. It reaches at least to the difference itself, and not beyond -1 and 1.
    """
    value, sources = float((hits - reference).sum() / trials.sum()), len(trials)
    if sources < 2:
        return Estimate(value=value, interval=None)
    size = trials.mean()
    left_out = _leave_one_out(np.append(hits - reference, [size, -size]), np.append(trials, [size, size]))
    middle = float((hits - reference).sum() / (trials.sum() + 2 * size))
    half = standard_error(left_out) * float(t.ppf((1 + confidence_level) / 2, sources - 1))
    return Estimate(
        value=value,
        interval=[max(-1.0, min(middle - half, value)), min(1.0, max(middle + half, value))],
        p_value=exchange_p_value(lambda hit, tried: hit / tried, [hits, trials], [reference, trials]),
    )


def _leave_one_out(hits: np.ndarray, trials: np.ndarray) -> np.ndarray:
    """The rate without one source each, float64 [sources]."""
    return (hits.sum() - hits) / (trials.sum() - trials)
