"""The smallest difference that could have been seen: "no difference is shown" may also mean too few texts or seeds."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincinv, ndtr, ndtri, stdtrit

POWER = 0.8
"""The chance with which a difference is to be found, as is usual (Cohen 1988)."""

QUANTILES = (np.arange(40) + 0.5) / 40


def smallest_shown(parts: Sequence[tuple[float, float]], confidence_level: float) -> float:
    """The smallest true difference that is found at 1 - `confidence_level` (two-sided) with the chance `POWER`.

    `parts` are standard errors and their degrees of freedom, as of `seeds.half_width`: one is Student's t. They were
    estimated, so the limit itself varies: over the quantiles of its chi-squares the chance is averaged. It says what
    such a study finds, and nothing about the difference that was seen.
    """
    squares, error = np.zeros(()), float(np.hypot.reduce([part for part, _ in parts]))
    for part, freedom in parts:
        limit = stdtrit(freedom, (1 + confidence_level) / 2) * part
        squares = np.add.outer(squares, limit**2 * 2 * gammaincinv(freedom / 2, QUANTILES) / freedom)
    limits = np.sqrt(squares)
    return float(brentq(lambda effect: ndtr((effect - limits) / error).mean() - POWER, 0.0, limits.max() + 10 * error))


def chance_of(effect: float, smallest: float, confidence_level: float) -> float:
    """The chance with which a true difference of `effect` is found by a study that finds `smallest` with `POWER`.

    By the normal distribution.
    """
    limit = ndtri((1 + confidence_level) / 2)
    return float(ndtr(effect / smallest * (limit + ndtri(POWER)) - limit))
