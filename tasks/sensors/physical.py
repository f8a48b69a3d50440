"""A regressor with its normaliser inside: from what the sensors show to what is to be found, in its units; and which
sensors that depends on."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import nn

from tasks.data.normaliser import Normaliser
from tasks.sensors.events import FOREIGN, SENTINEL, TARGETS
from tasks.sensors.networks import Regressor, kept

PLACE, TINY = 3, 1e-6
"""So many of the targets, from the first on, are a place; of less light there is no logarithm."""


class Physical(nn.Module):
    """From light in photons [B, S], for the dead SENTINEL, or FOREIGN and more, to targets in their units [B, 4].

    What the normaliser does is kept as weights are, so that all have one graph.
    """

    offsets: torch.Tensor
    scales: torch.Tensor
    is_logarithm: torch.Tensor
    plus: torch.Tensor

    def __init__(self, network: Regressor, normaliser: Normaliser) -> None:
        super().__init__()
        self.network, light = network, normaliser.steps[0]
        self.register_buffer("offsets", torch.tensor([step.offset for step in normaliser.steps]))
        self.register_buffer("scales", torch.tensor([step.scale for step in normaliser.steps]))
        self.register_buffer("is_logarithm", torch.tensor(light.logarithm_of_plus is not None))
        self.register_buffer("plus", torch.tensor(light.logarithm_of_plus or 0.0))

    @classmethod
    def load(cls, model: Path, untrained_seed: int | None = None) -> Self:
        """The regressor that a stage published, for evaluation on a CPU; or as a training with that seed begins."""
        torch.manual_seed(untrained_seed or 0)
        network = kept(lambda shape: Regressor(shape, TARGETS), model, trained=untrained_seed is None)
        return cls(network, Normaliser.load(model)).eval()

    def forward(self, photons: torch.Tensor) -> torch.Tensor:
        alive = (photons != SENTINEL) & (photons < FOREIGN)
        light = torch.where(self.is_logarithm, (photons + self.plus).clamp(min=TINY).log10(), photons)
        light = torch.where(alive, (light - self.offsets[0]) / self.scales[0], 0.0)
        return self.network(torch.stack([light, alive.to(light)], 1)) * self.scales[1:] + self.offsets[1:]

    def moved_by_a_photon(self, photons: torch.Tensor, at_once: int = 25) -> np.ndarray:
        """How far in cm the place that it finds moves for one photon more in each sensor, in the mean of events [S]."""
        total = torch.zeros(photons.shape[1])
        for part in photons.split(at_once):
            given = part.clone().requires_grad_()
            place = self(given)[:, :PLACE].sum(0)
            by_axis = [torch.autograd.grad(along, given, retain_graph=True)[0] for along in place]
            total += torch.stack(by_axis).norm(dim=0).sum(0)
        return (total / len(photons)).numpy()
