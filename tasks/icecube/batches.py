"""Events as a network gets them: chosen pulses, their features, normalised here and nowhere else, and a mask; the
network that gives an event's direction, and the angle between directions, for a loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from tasks.data.normaliser import Normaliser
from tasks.icecube.events import EventFiles, Pulses
from tasks.training.loader import moved

FEATURES = ("time", "charge", "sensor_id", "auxiliary", "x", "y", "z")


@dataclass(frozen=True)
class Batch:
    """Events side by side: features fp32 [B, P, 7], normalised; which pulses there are, bool [B, P]; truth [B, 3]."""

    features: torch.Tensor
    there: torch.Tensor
    directions: torch.Tensor

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, chosen: slice | torch.Tensor) -> Batch:
        return Batch(self.features[chosen], self.there[chosen], self.directions[chosen])

    def padded(self, pulses: int) -> Batch:
        """The same events with room for so many more pulses."""
        features = torch.nn.functional.pad(self.features, (0, 0, 0, pulses))
        return Batch(features, torch.nn.functional.pad(self.there, (0, pulses)), self.directions)


def raw_features(pulses: Pulses, places: np.ndarray, limit: int) -> np.ndarray:
    """The features of an event's pulses as they stand in the files, float64 [pulses, 7]; at most `limit` of them.

    Of more, those that are not likely noise are taken first, then those with most light; they stay in their order.
    """
    chosen = np.sort(np.lexsort((-pulses.charge, pulses.auxiliary))[:limit])
    sensor = pulses.sensor_id[chosen]
    of_pulse = (pulses.time[chosen], pulses.charge[chosen], sensor, pulses.auxiliary[chosen])
    return np.column_stack([*of_pulse, places[sensor]]).astype(np.float64)


@dataclass(frozen=True)
class EventBatches:
    """Makes the batch of any events; `places` are those of the sensors, `limit` the most pulses of an event."""

    files: EventFiles
    places: np.ndarray
    normaliser: Normaliser
    limit: int
    device: torch.device

    def __call__(self, indices: np.ndarray, epoch: int = 0) -> Batch:
        """The events with these numbers; `epoch` changes nothing: an event always has the same pulses."""
        events = [raw_features(self.files.pulses_of(int(index)), self.places, self.limit) for index in indices]
        raw = np.zeros((len(events), max(map(len, events)), len(FEATURES)), dtype=np.float32)
        there = np.zeros(raw.shape[:2], dtype=bool)
        for row, event in enumerate(events):
            raw[row, : len(event)], there[row, : len(event)] = event, True
        mask = torch.from_numpy(there)
        features = torch.where(mask[..., None], self.normaliser(torch.from_numpy(raw)), 0.0)
        truth = (torch.from_numpy(angles[indices]) for angles in (self.files.azimuth, self.files.zenith))
        return Batch(*(moved(part, self.device) for part in (features, mask, from_angles(*truth).float())))

    def held(self, events: np.ndarray) -> Batches:
        """Makes the batch of any of these events, by their places among them, from memory.

        Of others that are asked for again and again, every file would be read each time.
        """
        held = self(events)
        return lambda places, epoch=0: held.rows(torch.from_numpy(places).to(self.device))


Batches = Callable[..., Batch]
"""Numbers of events [B], epoch -> their batch."""


def from_angles(azimuth: torch.Tensor, zenith: torch.Tensor) -> torch.Tensor:
    """Unit vectors [..., 3] of azimuth and zenith in radians [...], as the Kaggle files have them."""
    sideways = zenith.sin()
    return torch.stack([sideways * azimuth.cos(), sideways * azimuth.sin(), zenith.cos()], dim=-1)


SHORTEST = 1e-6
"""A vector that is shorter has no direction that could be told from rounding; it bounds the gradient of `direction`."""


def direction(vectors: torch.Tensor) -> torch.Tensor:
    """Unit vectors [..., 3] along `vectors` [..., 3]; a vector shorter than SHORTEST stays as short in proportion."""
    return nn.functional.normalize(vectors, dim=-1, eps=SHORTEST)


def angle(first: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Angles in radians [...] between unit vectors [..., 3]: 2 atan2(|a - b|, |a + b|).

    arccos(a . b) needs a clip to stay finite, and beyond the clip it teaches nothing: with an epsilon of 1e-4 every
    pair nearer than 0.8 degrees counts as 0.8 degrees. This form (Kahan, "How Futile are Mindless Assessments of
    Roundoff", 2006, section 12) needs none.
    The gradient is finite everywhere; between equal or opposite vectors, where there is none, it is 0.
    """
    return 2 * torch.atan2(_length(first - other), _length(first + other))


def _length(vectors: torch.Tensor) -> torch.Tensor:
    """Norms [...] of vectors [..., 3], with the gradient 0 at 0 instead of none."""
    squares = vectors.square().sum(-1)
    nothing = squares == 0
    return torch.where(nothing, 0.0, torch.where(nothing, 1.0, squares).sqrt())


class DirectionNetwork(nn.Module):
    """Events to unit vectors [B, 3]. LayerNorms stand behind each sublayer, as in the study that this one follows."""

    def __init__(self, width: int, layers: int, heads: int, dropout: float, batch_norm: bool = False):
        super().__init__()
        self.norm = nn.BatchNorm1d(len(FEATURES)) if batch_norm else None
        self.embed = nn.Linear(len(FEATURES), width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 3)

    def forward(self, batch: Batch) -> torch.Tensor:
        return direction(self.head(self.events(batch)))

    def events(self, batch: Batch) -> torch.Tensor:
        """An embedding of each event, [B, width]: the mean over its pulses, whatever stands beside them."""
        features = batch.features
        if self.norm is not None:
            normed = torch.zeros_like(features)
            normed[batch.there] = self.norm(features[batch.there])
            features = normed
        pulses = self.encoder(self.embed(features), src_key_padding_mask=~batch.there)
        pulses = torch.where(batch.there[..., None], pulses, 0.0)
        return pulses.sum(1) / batch.there.sum(1, keepdim=True)


@torch.no_grad()
def predicted(model: nn.Module, batch: Batch, at_once: int) -> torch.Tensor:
    """The directions [B, 3], for so many events at once as the memory holds."""
    return torch.cat([model(batch.rows(slice(start, start + at_once))) for start in range(0, len(batch), at_once)])
