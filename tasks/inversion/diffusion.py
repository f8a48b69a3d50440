"""The noise that is added and taken away again: the cosine schedule (Nichol and Dhariwal, 2021) and its step sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

CLAMP = 2.0
"""No entry of an inverse is taken to be larger."""
OFFSET, MOST_BETA = 0.008, 0.999


@dataclass(frozen=True)
class Diffusion:
    """A schedule of T steps; each field is fp32 [T]."""

    alpha_bar: torch.Tensor
    """Share of the signal's variance that is left at t; 1 - alpha_bar is that of the noise."""
    step_size: torch.Tensor
    """Of a step down the energy at t: beta / sqrt(1 - alpha_bar)."""

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
