"""An activation of our own: `tasks.language.model` makes it known to transformers, which by itself refuses its name."""

import torch
from torch import nn

MONOTONE_PARTS = "monotone-parts"
CONVEX_SHARE, CONCAVE_SHARE = 7 / 16, 7 / 16
"""Shares of the hidden units; the authors' implementation (monotonic-nn) splits 7 : 7 : 2 too."""


def monotone_parts(units: int) -> tuple[int, int, int]:
    """How many of so many hidden units are convex, concave and saturated, in that order."""
    convex, concave = round(units * CONVEX_SHARE), round(units * CONCAVE_SHARE)
    return convex, concave, units - convex - concave


class MonotoneParts(nn.Module):
    """ReLU(z) for the first hidden units, -ReLU(-z) for the next, z between -1 and 1 for the last; on the last axis.

    None of them ever falls. With non-negative weights, ReLU alone makes convex functions only; the three together
    approximate every monotone function (Runje and Shankaranarayana, ICML 2023, arXiv 2205.11775; the saturated unit
    is made of ReLU as there).
    """

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        convex, concave, saturated = z.split(monotone_parts(z.shape[-1]), dim=-1)
        return torch.cat([convex.relu(), -(-concave).relu(), saturated.clamp(-1, 1)], dim=-1)
