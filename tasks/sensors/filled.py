"""What a network says of hidden sensors, and by how much it is wrong, beside the mean of their neighbours."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.parquet as pq
import torch

from storage.errors import require
from tasks.data.normaliser import Normaliser
from tasks.sensors.batches import Batch, Batches
from tasks.sensors.configuration import Filling
from tasks.sensors.events import Events
from tasks.sensors.networks import Filler, kept
from tasks.stage.run import StageInput

LIGHT, GUESSES = ("bright", "dim"), ("mae", "neighbour_mae")
SUMS = ("live", *LIGHT, *(f"{guess}_{light}" for guess in GUESSES for light in LIGHT))
"""Columns of an event: sensors that are alive, hidden ones by light, and the sums of what these are missed by."""
Rows = Iterator[dict[str, Any]]


@dataclass(frozen=True)
class Filled:
    """A network that fills in, and the events that it is judged on, masks included."""

    network: Filler
    batches: Batches
    at_once: int

    @classmethod
    def load(
        cls, given: StageInput, events: Events, how: Filling, mask_seed: int, at_once: int, device: torch.device
    ) -> Self:
        """The network that a stage published."""
        model = given.path / "model"
        batches = Batches(events, Normaliser.load(model), device, how.mask_ratio, mask_seed, "judged")
        return cls(kept(Filler, model).to(device), batches, at_once)

    @torch.no_grad()
    def sensors(self, first: int, end: int) -> Rows:
        """Each hidden sensor of some events: what it showed, what the network says, and its neighbours' mean."""
        for indices, batch, predicted in self._in_turn(first, end):
            of = batch.hidden.nonzero(as_tuple=True)
            values = (batch.photons, predicted, batch.neighbours())
            columns = [indices[of[0].cpu()].tolist(), of[1].tolist(), *(value[of].tolist() for value in values)]
            for row in zip(*columns, strict=True):
                yield dict(zip(("event", "sensor", "photons", "predicted", "neighbours"), row, strict=True))

    @torch.no_grad()
    def errors(self, first: int, end: int, bright_photons: float) -> Rows:
        """SUMS of some events; sensors with so many photons or more are bright."""
        for indices, batch, predicted in self._in_turn(first, end):
            is_bright = batch.photons >= bright_photons
            kinds = [batch.hidden & is_bright, batch.hidden & ~is_bright]
            missed = [(guess - batch.photons).abs().double() for guess in (predicted, batch.neighbours())]
            columns = [batch.alive, *kinds, *(error * kind for error in missed for kind in kinds)]
            for event, row in zip(
                indices.tolist(), torch.stack([of.double().sum(1) for of in columns], 1), strict=True
            ):
                yield {"event": event, **dict(zip(SUMS, row.tolist(), strict=True))}

    def _in_turn(self, first: int, end: int) -> Iterator[tuple[np.ndarray, Batch, torch.Tensor]]:
        for indices, batch in self.batches.in_turn(self.at_once, first, end):
            yield indices, batch, self.batches.photons(self.network(batch.seen))


def columns(file: Path, **of: object) -> dict[str, np.ndarray]:
    """The rows by column, of one model and event where they are named: all may be more than memory holds."""
    table = pq.read_table(file, filters=[(on, "==", at) for on, at in of.items()] or None)
    return {name: table[name].to_numpy() for name in table.column_names}


def mean_errors(sums: Mapping[str, np.ndarray], mask_ratio: float) -> dict[str, float]:
    """Mean errors in photons, of SUMS by event. CheckFailed where no bright sensor is hidden, or no dim one."""
    total = {name: float(sums[name].sum()) for name in SUMS}
    count = {light: total[light] for light in LIGHT}
    require(all(count.values()), "bright and dim sensors are hidden", count, "some of both (see bright_photons)")
    hidden = sum(count.values())
    found = {"live": total["live"], "hidden": hidden, "actual_mask_ratio": hidden / total["live"]}
    found |= {"mask_ratio": mask_ratio, "events": len(sums["live"]), **count}
    for guess in GUESSES:
        found[guess] = sum(total[f"{guess}_{light}"] for light in LIGHT) / hidden
        found |= {f"{guess}_{light}": total[f"{guess}_{light}"] / count[light] for light in LIGHT}
    return found
