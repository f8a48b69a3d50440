"""calorimeter-judge: by how much all networks that fill in miss hidden sensors, event by event, beside the mean of the
sensors' neighbours; it trains nothing."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow.parquet as pq
import torch

from storage.errors import require
from tasks.calorimeter.stages import FillConfig, JudgeConfig
from tasks.data.normaliser import Normaliser
from tasks.sensors.batches import Batches
from tasks.sensors.configuration import Filling
from tasks.sensors.networks import Filler, kept
from tasks.sensors.xenon import Events
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun

EVENTS_IN_A_PART, KEY = 50, ("model", "event")
LIGHT, GUESSES = ("bright", "dim"), ("mae", "neighbour_mae")
SUMS = ("live", *LIGHT, *(f"{guess}_{light}" for guess in GUESSES for light in LIGHT))
"""Columns of an event: sensors that are alive, hidden ones by light, and the sums of what these are missed by."""
Rows = Iterator[dict[str, Any]]


def judge(run: StageRun, config: JudgeConfig, data: StageInput, **fits: StageInput) -> dict[str, float]:
    """Records: the errors in every event of validation by each network, summed over its bright and its dim sensors."""
    events, where = Events.open(data, "validation"), device(config.execution)
    configs = ((role, fit.configuration(FillConfig)) for role, fit in fits.items())
    asked = dict(sorted(configs, key=lambda how: (how[0] != "mae", how[1].seed)))  # bytes are those of any page's order
    keys: list[str] = []
    for role, how in asked.items():
        at_once = config.execution.micro_batch_examples
        filled = Filled.load(fits[role], events, how.filling, how.mask_seed, at_once, where)
        parts = partial(_rows, run, role, partial(filled.errors, bright_photons=config.bright_photons), len(events))
        starts = range(0, len(events), EVENTS_IN_A_PART)
        keys += run.each(starts, parts, "parts", role, f"{role}-".lower())
    run.merge_records(keys, KEY)
    for role, how in asked.items():  # refused here already where no bright sensor is hidden
        mean_errors(columns(run.directory / "records.parquet", model=role), how.filling.mask_ratio)
    return {}


def _rows(run: StageRun, role: str, made: Callable[[int, int], Rows], end: int, first: int) -> Rows:
    for row in made(first, min(first + EVENTS_IN_A_PART, end)):
        run.progress.touch()
        yield {"model": role, **row}


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
    def errors(self, first: int, end: int, bright_photons: float) -> Rows:
        """SUMS of some events; sensors with so many photons or more are bright."""
        for indices, batch in self.batches.in_turn(self.at_once, first, end):
            predicted = self.batches.photons(self.network(batch.seen))
            is_bright = batch.photons >= bright_photons
            kinds = [batch.hidden & is_bright, batch.hidden & ~is_bright]
            missed = [(guess - batch.photons).abs().double() for guess in (predicted, batch.neighbours())]
            columns = [batch.alive, *kinds, *(error * kind for error in missed for kind in kinds)]
            for event, row in zip(
                indices.tolist(), torch.stack([of.double().sum(1) for of in columns], 1), strict=True
            ):
                yield {"event": event, **dict(zip(SUMS, row.tolist(), strict=True))}


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
    means = {"live": total["live"], "hidden": hidden, "actual_mask_ratio": hidden / total["live"]}
    means |= {"mask_ratio": mask_ratio, "events": len(sums["live"]), **count}
    for guess in GUESSES:
        means[guess] = sum(total[f"{guess}_{light}"] for light in LIGHT) / hidden
        means |= {f"{guess}_{light}": total[f"{guess}_{light}"] / count[light] for light in LIGHT}
    return means
