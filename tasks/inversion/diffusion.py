"""An energy that is low where y is the inverse of x, noise that is added and taken away, steps down the energy, and how
with these an inverse is sought.

The energy is E(x, y, t) = |f([x, y], t)|^2, whose gradient predicts the noise in y, after Du et al., "Learning
Iterative Reasoning through Energy Diffusion" (2024). The schedule is the cosine one (Nichol and Dhariwal, 2021).

A step is taken row by row, and kept only where the energy does not rise. The recorded study's code does two things
otherwise, which the descent `as-published` keeps, since its results were made with them: after the first step every
further one is twice as long, and every row is clamped by the limit of the *first row's* t. So what becomes of a row
depends on which rows happen to stand beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from tasks.inversion.study import DescentName

TIME_WIDTH = 128
LONGEST_PERIOD = 10_000.0


class EnergyNetwork(nn.Module):
    """The energies [B] of x, y [B, d] at the steps t [B]: three hidden SiLU layers, of which the second and third are
    scaled and shifted by an embedding of t, and as many outputs as y has entries. It normalises x itself."""

    def __init__(self, entries: int, width: int, steps: int, mean: torch.Tensor, deviation: torch.Tensor) -> None:
        """`entries`: d; `steps` of the diffusion; `mean` and `deviation` [d] are those of x."""
        super().__init__()
        self.register_buffer("steps", _embedded(torch.arange(steps)))
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        self.time = nn.Sequential(nn.Linear(TIME_WIDTH, TIME_WIDTH), nn.GELU(), nn.Linear(TIME_WIDTH, TIME_WIDTH))
        self.layers = nn.ModuleList([nn.Linear(2 * entries, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.scales = nn.ModuleList([nn.Linear(TIME_WIDTH, 2 * width) for _ in self.layers[1:]])
        self.last = nn.Linear(width, entries)

    def forward(self, x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        times = self.time(self.steps)  # of every step, which is less work than of every row
        first, *further = self.layers
        hidden = functional.silu(first(torch.cat([(x - self.mean) / self.deviation, y], dim=-1)))
        for layer, scales in zip(further, self.scales, strict=True):
            scale, shift = scales(times)[t].chunk(2, dim=-1)
            hidden = functional.silu(layer(hidden) * (1 + scale) + shift)
        return self.last(hidden).square().sum(-1)


def energy_and_gradient(
    network: nn.Module, x: torch.Tensor, y: torch.Tensor, t: torch.Tensor, for_training: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """The energies [B] and their gradients by y [B, d]; only `for_training` can both be differentiated again."""
    with torch.enable_grad():
        at = y.detach().requires_grad_()
        energies = network(x, at, t)
        (gradient,) = torch.autograd.grad(energies.sum(), at, create_graph=for_training)
    return (energies, gradient) if for_training else (energies.detach(), gradient)


def _embedded(t: torch.Tensor) -> torch.Tensor:
    """Sines and cosines of t [B], as [B, TIME_WIDTH]."""
    half = TIME_WIDTH // 2
    frequencies = torch.exp(torch.arange(half, device=t.device) * (-math.log(LONGEST_PERIOD) / (half - 1)))
    angles = t[:, None].float() * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=-1)


CLAMP = 2.0
"""No entry of an inverse is taken to be larger."""
OFFSET, MOST_BETA = 0.008, 0.999


@dataclass(frozen=True)
class Diffusion:
    """A schedule of T steps; each field is fp32 [T]."""

    alpha_bar: torch.Tensor
    """Share of the signal's variance that is left at t; 1 - alpha_bar is that of the noise."""
    step_size: torch.Tensor
    """Length of a step down the energy at t: beta / sqrt(1 - alpha_bar)."""

    @classmethod
    def cosine(cls, steps: int, device: torch.device | str = "cpu") -> Diffusion:
        def left(t: float) -> float:
            return math.cos((t / steps + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2

        betas = [min(1 - left(t + 1) / left(t), MOST_BETA) for t in range(steps)]
        beta = torch.tensor(betas, dtype=torch.float64)
        alpha_bar = torch.cumprod(1 - beta, 0)
        sizes = beta / (1 - alpha_bar).sqrt()
        return cls(alpha_bar.float().to(device), sizes.float().to(device))

    def __len__(self) -> int:
        return len(self.alpha_bar)

    def signal(self, t: torch.Tensor) -> torch.Tensor:
        """sqrt(alpha_bar) at the steps t [B], as [B, 1]."""
        return self.alpha_bar[t].sqrt()[:, None]

    def noise(self, t: torch.Tensor) -> torch.Tensor:
        """sqrt(1 - alpha_bar), likewise."""
        return (1 - self.alpha_bar[t]).sqrt()[:, None]

    def noised(self, y: torch.Tensor, t: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        """y [B, d] at the steps t [B], with this standard normal noise [B, d]."""
        return self.signal(t) * y + self.noise(t) * noise


def descend(
    network: nn.Module,
    diffusion: Diffusion,
    x: torch.Tensor,
    y: torch.Tensor,
    t: torch.Tensor,
    steps: int,
    scale: float = 1.0,
    descent: DescentName = "corrected",
) -> torch.Tensor:
    """y [B, d] after so many steps from it at t [B], each `scale` times as long as the schedule says; no gradients."""
    published = descent == "as-published"
    limits = CLAMP * diffusion.signal(t[:1] if published else t)
    sizes = scale * diffusion.step_size[t][:, None]
    at = y
    for step in range(steps):
        longer = 2.0 if published and step else 1.0
        energies, gradient = energy_and_gradient(network, x, at, t)
        tried = torch.clamp(at - longer * sizes * gradient, -limits, limits)
        with torch.no_grad():
            falls = network(x, tried, t) <= energies
        at = torch.where(falls[:, None], tried, at)
    return at.detach()


def invert(
    network: nn.Module, diffusion: Diffusion, x: torch.Tensor, noise: torch.Tensor, descent_steps: int
) -> torch.Tensor:
    """The y that the network takes for the inverse of x [B, d], fp32 [B, d], from standard normal noise [B, d].

    Each row by itself, with the corrected descent whatever a network was trained with: arms differ in training alone.
    """
    y, best = noise, noise
    for step in reversed(range(len(diffusion))):
        t = torch.full((len(x),), step, dtype=torch.long, device=x.device)
        signal = diffusion.signal(t)
        _, gradient = energy_and_gradient(network, x, y, t)
        clean = ((y - diffusion.noise(t) * gradient) / signal).clamp(-CLAMP, CLAMP)
        best = descend(network, diffusion, x, signal * clean, t, descent_steps) / signal
        if step:
            y = diffusion.signal(t - 1) * best
    return best
