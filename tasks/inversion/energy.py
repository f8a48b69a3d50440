"""The energy E(x, y, t) = |f([x, y], t)|^2: low where y is the inverse of x. Its gradient predicts the noise in y.

After Du et al., "Learning Iterative Reasoning through Energy Diffusion" (2024): three hidden SiLU layers, of
which the second and third are scaled and shifted by an embedding of t, and as many outputs as y has entries.
"""

import math

import torch
from torch import nn
from torch.nn import functional

TIME_WIDTH = 128
LONGEST_PERIOD = 10_000.0


class EnergyNetwork(nn.Module):
    """The energies [B] of x, y [B, d] at the steps t [B]. It normalises x itself, by its buffers."""

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
