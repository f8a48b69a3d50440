"""The angle between directions, for a loss: right near 0 and pi, where the arc cosine loses half of its digits.

arccos(a . b) needs a clip to stay finite, and beyond the clip it teaches nothing: with an epsilon of 1e-4 every pair
nearer than 0.8 degrees counts as 0.8 degrees. The form below needs none (Kahan, "How Futile are Mindless Assessments
of Roundoff", 2006, section 12).
"""

from __future__ import annotations

import torch
from torch import nn

SHORTEST = 1e-6
"""A vector that is shorter has no direction that could be told from rounding; it bounds the gradient of `direction`."""


def direction(vectors: torch.Tensor) -> torch.Tensor:
    """Unit vectors [..., 3] along `vectors` [..., 3]; a vector shorter than SHORTEST stays as short in proportion."""
    return nn.functional.normalize(vectors, dim=-1, eps=SHORTEST)


def angle(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Angles in radians [...] between unit vectors [..., 3]: 2 atan2(|a - b|, |a + b|).

    The gradient is finite everywhere; between equal or opposite vectors, where there is none, it is 0.
    """
    return 2 * torch.atan2(_length(one - other), _length(one + other))


def from_angles(azimuth: torch.Tensor, zenith: torch.Tensor) -> torch.Tensor:
    """Unit vectors [..., 3] of azimuth and zenith in radians [...], as the Kaggle files have them."""
    sideways = zenith.sin()
    return torch.stack([sideways * azimuth.cos(), sideways * azimuth.sin(), zenith.cos()], dim=-1)


def _length(vectors: torch.Tensor) -> torch.Tensor:
    """Norms [...] of vectors [..., 3], with the gradient 0 at 0 instead of none."""
    squares = vectors.square().sum(-1)
    nothing = squares == 0
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, squares).sqrt())
