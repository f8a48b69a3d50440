"""An inverse is sought: from noise, step by step to less of it, with some steps down the energy at each."""

from __future__ import annotations

import torch
from torch import nn

from tasks.inversion.descent import descend
from tasks.inversion.diffusion import CLAMP, Diffusion
from tasks.inversion.energy import energy_and_gradient


def invert(
    network: nn.Module, diffusion: Diffusion, x: torch.Tensor, noise: torch.Tensor, descent_steps: int
) -> torch.Tensor:
    """The y that the network takes for the inverse of x [B, d], fp32 [B, d], from standard normal noise [B, d].

    Each row by itself, with the corrected descent whatever a network was trained with: arms differ in training alone.
    """
    y, found = noise, noise
    for step in reversed(range(len(diffusion))):
        t = torch.full((len(x),), step, dtype=torch.long, device=x.device)
        signal = diffusion.signal(t)
        _, gradient = energy_and_gradient(network, x, y, t)
        clean = ((y - diffusion.noise(t) * gradient) / signal).clamp(-CLAMP, CLAMP)
        found = descend(network, diffusion, x, signal * clean, t, descent_steps).y / signal
        if step:
            y = diffusion.signal(t - 1) * found
    return found
