"""Events as a network gets them: chosen pulses, their features, normalised here and nowhere else, and a mask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tasks.data.normaliser import Normaliser
from tasks.icecube.events import EventFiles, Pulses
from tasks.training.loader import moved

CHUNK_PULSES = 100_000
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


def feature_chunks(files: EventFiles, indices: np.ndarray, places: np.ndarray, limit: int) -> Iterator[np.ndarray]:
    """The raw features of these events, one event after the other: what statistics are made of.

    A chunk has CHUNK_PULSES pulses or a few more, the last one what is left: what a column's statistics cost for each
    chunk would be paid for every event else.
    """
    events: list[np.ndarray] = []
    pulses = 0
    for index in indices:
        events.append(raw_features(files.pulses_of(int(index)), places, limit))
        pulses += len(events[-1])
        if pulses >= CHUNK_PULSES:
            yield np.concatenate(events)
            events, pulses = [], 0
    if events:
        yield np.concatenate(events)


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
