"""Steps down the energy: how a candidate is improved when an inverse is sought, and how a hard negative is made.

A step is taken row by row, and kept only where the energy does not rise. The recorded study's code does two things
otherwise, which the descent `as-published` keeps, since its results were made with them: after the first step every
further one is twice as long, and every row is clamped by the limit of the *first row's* t. So what becomes of a row
depends on which rows happen to stand beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from tasks.inversion.diffusion import CLAMP, Diffusion
from tasks.inversion.energy import energy_and_gradient

Descent = Literal["corrected", "as-published"]


@dataclass(frozen=True)
class Descended:
    """Rows after the last step [B, d], the share of steps that were kept [B], and |gradient| before the first [B]."""

    y: torch.Tensor
    kept: torch.Tensor
    gradient_norms: torch.Tensor


def descend(
    network: nn.Module,
    diffusion: Diffusion,
    x: torch.Tensor,
    y: torch.Tensor,
    t: torch.Tensor,
    steps: int,
    scale: float = 1.0,
    descent: Descent = "corrected",
) -> Descended:
    """`steps` steps from y [B, d] at t [B], each `scale` times as long as the schedule says; without gradients."""
    published = descent == "as-published"
    limits = CLAMP * diffusion.signal(t[:1] if published else t)
    sizes = scale * diffusion.step_size[t][:, None]
    kept = torch.zeros(len(y), device=y.device)
    norms = torch.zeros_like(kept)
    at = y
    for step in range(steps):
        longer = 2.0 if published and step else 1.0
        energies, gradient = energy_and_gradient(network, x, at, t)
        if step == 0:
            norms = gradient.norm(dim=-1)
        tried = torch.clamp(at - longer * sizes * gradient, -limits, limits)
        with torch.no_grad():
            falls = network(x, tried, t) <= energies
        at = torch.where(falls[:, None], tried, at)
        kept += falls
    return Descended(at.detach(), kept / max(1, steps), norms)
