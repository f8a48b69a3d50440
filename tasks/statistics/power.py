"""What could have been seen: without it "no difference is shown" may mean none, or too few texts, sources or seeds."""

from __future__ import annotations

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincinv, ndtr, stdtrit

POWER = 0.8
"""The chance with which a difference is to be found, as is usual (Cohen 1988)."""

QUANTILES = (np.arange(200) + 0.5) / 200


def smallest_shown(standard_error: float, degrees_of_freedom: float, confidence_level: float) -> float:
    """The smallest true difference that a two-sided t test at 1 - `confidence_level` finds with the chance `POWER`.

    The standard error is one that was estimated, so the test's t is not central: a normal divided by a chi, over whose
    quantiles the chance is averaged. It says what such a study finds, and nothing about the difference that was seen.
    """
    limit = stdtrit(degrees_of_freedom, (1 + confidence_level) / 2)
    limits = limit * np.sqrt(2 * gammaincinv(degrees_of_freedom / 2, QUANTILES) / degrees_of_freedom)
    effect = brentq(lambda effect: ndtr(effect - limits).mean() - POWER, 0.0, limits[-1] + 10)
    return float(effect * standard_error)
