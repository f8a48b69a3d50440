"""Activations as mathematics has them: the bounds of their slopes, and their formulas in float64.

W >= 0 twice makes a feed-forward sublayer monotone only if its activation never falls. GELU and SiLU do fall. The
formulas are written here again, apart from the networks' own code, which they are to check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr

from tasks.language.activation import MONOTONE_PARTS, monotone_parts


def _monotone_parts(z: np.ndarray) -> np.ndarray:
    unit, (convex, concave, _) = np.arange(z.shape[-1]), monotone_parts(z.shape[-1])
    low = np.where(unit < convex, 0.0, np.where(unit < convex + concave, -np.inf, -1.0))
    high = np.where(unit < convex, np.inf, np.where(unit < convex + concave, 0.0, 1.0))
    return np.minimum(np.maximum(z, low), high)


def _tanh_gelu(z: np.ndarray) -> np.ndarray:
    return 0.5 * z * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (z + 0.044715 * z**3)))


@dataclass(frozen=True)
class Activation:
    """`formula` in float64, the last axis being the hidden units; its slope lies in [`lowest_slope`, `highest_slope`].

    The bounds hold over all real numbers, rounded outwards in the fourth digit.
    """

    formula: Callable[[np.ndarray], np.ndarray]
    lowest_slope: float
    highest_slope: float


_TANH_GELU = Activation(_tanh_gelu, -0.1290, 1.1290)
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(lambda z: np.maximum(z, 0.0), 0.0, 1.0),
    MONOTONE_PARTS: Activation(_monotone_parts, 0.0, 1.0),
    # the slope Phi(z) + z phi(z) has its extremes at z = -sqrt(2) and sqrt(2): -0.128904 and 1.128904
    "gelu": Activation(lambda z: z * ndtr(z), -0.1290, 1.1290),
    "gelu_new": _TANH_GELU,
    "gelu_fast": _TANH_GELU,
    "gelu_pytorch_tanh": _TANH_GELU,
    "silu": Activation(lambda z: z * expit(z), -0.0999, 1.0999),
}
"""By the name that a model's configuration has for it (transformers' ACT2FN, and ours)."""
