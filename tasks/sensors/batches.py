"""Events of a detector as the training loop sees them: light normalised in one place, masks, losses, and what the
sensors beside a hidden one say."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch.nn import functional

from tasks.data.normaliser import Normaliser
from tasks.sensors.xenon import SENSORS, SENTINEL, Events, detector
from tasks.training.draws import uniform_at
from tasks.training.loader import moved


@dataclass(frozen=True)
class Batch:
    """Light in photons and normalised, and which sensors are alive, and of these hidden, [B, S]; the truth, normalised,
    [B, 4]."""

    photons: torch.Tensor
    light: torch.Tensor
    alive: torch.Tensor
    hidden: torch.Tensor
    truth: torch.Tensor

    @property
    def seen(self) -> torch.Tensor:
        """What a network gets [B, 2, S]: light, 0 where none is seen, and where it is."""
        seen = self.alive & ~self.hidden
        return torch.stack([torch.where(seen, self.light, 0.0), seen.to(self.light)], 1)

    def neighbours(self) -> torch.Tensor:
        """The mean light of each sensor's seen neighbours in photons [B, S]: what needs no learning."""
        return near_mean(self.photons, self.seen[:, 1], torch.from_numpy(detector().near).to(self.photons.device))


@dataclass(frozen=True)
class Batches:
    """`batch(indices, epoch)` of a training, or of what it is judged on; `mask_ratio` 0 hides nothing."""

    events: Events
    normaliser: Normaliser
    device: torch.device
    mask_ratio: float = 0.0
    seed: int = 0
    purpose: str = "mask"

    def __call__(self, indices: np.ndarray, epoch: int) -> Batch:
        photons, truth = (torch.from_numpy(of[indices]) for of in (self.events.light, self.events.truth))
        alive = photons != SENTINEL
        hidden = torch.zeros_like(alive)
        if self.mask_ratio:
            hidden = hide(uniform_at(self.seed, self.purpose, epoch, indices, (SENSORS,)), alive, self.mask_ratio)
        targets = Normaliser(steps=self.normaliser.steps[1:])
        parts = (photons, self.light(photons), alive, hidden, targets(truth))
        return Batch(*(moved(part, self.device) for part in parts))

    def light(self, photons: torch.Tensor) -> torch.Tensor:
        """Light in photons, normalised."""
        return Normaliser(steps=self.normaliser.steps[:1])(photons[..., None])[..., 0]

    def photons(self, light: torch.Tensor) -> torch.Tensor:
        """Normalised light, in photons."""
        (step, *_) = self.normaliser.steps
        values = light * step.scale + step.offset
        return values if step.logarithm_of_plus is None else 10**values - step.logarithm_of_plus

    def in_turn(self, at_once: int, first: int = 0, end: int | None = None) -> Iterator[tuple[np.ndarray, Batch]]:
        """The events from `first` on, so many at once, with their numbers."""
        end = min(len(self.events), len(self.events) if end is None else end)
        for start in range(first, end, at_once):
            indices = np.arange(start, min(start + at_once, end))
            yield indices, self(indices, 0)


def hide(draws: torch.Tensor, alive: torch.Tensor, ratio: float) -> torch.Tensor:
    """Which sensors are hidden, bool [B, S]: of each event's live ones exactly the share `ratio`, rounded down, and at
    least one. `draws` [B, S] are uniform; the lowest decide, and of equal ones the first."""
    counts = (alive.sum(1, keepdim=True).double() * ratio).long().clamp(min=1)
    order = torch.where(alive, draws, torch.inf).sort(stable=True, dim=1).indices
    return torch.zeros_like(alive).scatter(1, order, torch.arange(alive.shape[1]) < counts)


def near_mean(values: torch.Tensor, seen: torch.Tensor, near: torch.Tensor) -> torch.Tensor:
    """The mean value of each sensor's seen neighbours [B, S]; of all that an event shows, where it has none.

    `values` and `seen` (0 or 1) are [B, S], `near` the numbers of each sensor's neighbours [S, K], filled up with S.
    """
    values, seen = (functional.pad(of, (0, 1)) for of in (values * seen, seen))
    count, total = seen[:, near].sum(-1), values[:, near].sum(-1)
    everywhere = values.sum(1, keepdim=True) / seen.sum(1, keepdim=True)
    return torch.where(count > 0, total / count.clamp(min=1), everywhere)


def fill_losses(predicted: torch.Tensor, batch: Batch, beta: float) -> torch.Tensor:
    """The mean loss over each event's hidden sensors, [B], of predictions [B, S]."""
    losses = functional.smooth_l1_loss(predicted, batch.light, reduction="none", beta=beta)
    return (losses * batch.hidden).sum(1) / batch.hidden.sum(1)


def target_losses(predicted: torch.Tensor, batch: Batch, beta: float) -> torch.Tensor:
    """The mean loss over what is to be found of each event, [B], of predictions [B, 4]."""
    return functional.smooth_l1_loss(predicted, batch.truth, reduction="none", beta=beta).mean(1)
