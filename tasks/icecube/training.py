"""The network and its events as the training loop sees them: one function for tables of rates, trials and training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from storage import durable
from storage.errors import BadInput
from tasks.data.normaliser import Normaliser
from tasks.icecube.batches import FEATURES, Batch, Batches, EventBatches
from tasks.icecube.configuration import Inputs, Network, Trained
from tasks.icecube.events import EventFiles
from tasks.icecube.look import normaliser_of
from tasks.icecube.network import DirectionNetwork, angle, predicted
from tasks.icecube.pulses import Data
from tasks.icecube.results import CONSTANT, LookResult
from tasks.icecube.stages import TrainsNetwork
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.budget import Budget
from tasks.training.optimizer import adamw
from tasks.training.order import FileOrder, as_stored
from tasks.training.problem import Problem

EVENTS_IN_A_PART = 50_000
ANGLE = "angle_degrees"
"""The metric that decides: the mean angle between prediction and truth on the events that are judged."""
COLUMNS = ("event_id", "batch_id", ANGLE)


@dataclass(frozen=True)
class Prepared:
    """The part that the trainings of a stage share: the events, and how they become batches."""

    data: Data
    normaliser: Normaliser
    config: TrainsNetwork
    trivial_degrees: float

    @classmethod
    def of(cls, config: TrainsNetwork, events: StageInput, look: StageInput, inputs: Inputs) -> Prepared:
        normaliser = normaliser_of(look) if inputs == "normalised" else Normaliser.none(FEATURES)
        trivial = LookResult.read(look).trivial.best_constant_degrees
        return cls(Data.open(events, config), normaliser, config, trivial)

    def batches(self, files: EventFiles) -> EventBatches:
        limit, where = self.config.pulses_per_event, device(self.config.execution)
        return EventBatches(files, self.data.places, self.normaliser, limit, where)

    def problem(
        self,
        trained: Trained,
        budget: Budget,
        seed: int,
        judged: np.ndarray | None = None,
        touch: Callable[[], None] = lambda: None,
    ) -> Problem:
        """A network of `seed`, judged on these events of validation, or on all of them."""
        torch.manual_seed(seed)
        model = network(self.config.network, trained).to(device(self.config.execution))
        all_of_them, at_once = self.batches(self.data.validation), self.config.execution.micro_batch_examples
        batches: Batches = all_of_them if judged is None else all_of_them.held(judged)
        events = np.arange(len(self.data.validation) if judged is None else len(judged))
        return Problem(
            model,
            adamw(model, budget),
            self.batches(self.data.train),
            losses,
            partial(judge, batches=batches, events=events, at_once=at_once, touch=touch),
            decides=ANGLE,
            trivial={CONSTANT: self.trivial_degrees},
            order=FileOrder(self.data.train.sizes, self.config.open_files) if trained.shuffle else as_stored,
        )

    def keep(self, run: StageRun, model: nn.Module, trained: Trained, finite: bool = True) -> None:
        """Publishes weights, shape and normaliser together, and the angle of every event of validation as records,
        where these are `finite`."""
        files, batches = self.data.validation, self.batches(self.data.validation)

        def rows(first: int) -> list[dict[str, Any]]:
            some = np.arange(first, min(first + EVENTS_IN_A_PART, len(files)))
            degrees = angles(model, batches, some, self.config.execution.micro_batch_examples, run.progress.touch)
            columns = (files.event_ids[some].tolist(), files.batch_ids[some].tolist(), degrees.tolist())
            return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]

        if finite:
            parts = {f"validation-{first:010d}": first for first in range(0, len(files), EVENTS_IN_A_PART)}
            run.merge_records(run.each(parts, rows, "parts"), ("event_id",))
        with run.publish("model") as folder:
            save_file(model.cpu().state_dict(), folder / "model.safetensors")
            shape = self.config.network.model_dump() | {"batch_norm": trained.batch_norm}
            durable.write_json(folder / "config.json", shape | {"features": list(FEATURES)})
            self.normaliser.save(folder)


def network(shape: Network, trained: Trained) -> DirectionNetwork:
    return DirectionNetwork(shape.width, shape.layers, shape.heads, trained.dropout, trained.batch_norm)


def losses(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The angle of each event between prediction and truth, [B], in radians."""
    return angle(model(batch).float(), batch.directions)


@torch.no_grad()
def angles(
    model: nn.Module, batches: Batches, events: np.ndarray, at_once: int, touch: Callable[[], None] = lambda: None
) -> torch.Tensor:
    """The angle of each of these events in degrees, fp64 [N], on the CPU."""
    degrees = []
    for first in range(0, len(events), at_once):
        batch = batches(events[first : first + at_once])
        degrees.append(angle(predicted(model, batch, at_once).double(), batch.directions.double()).rad2deg().cpu())
        touch()
    return torch.cat(degrees)


def judge(
    model: nn.Module, batches: Batches, events: np.ndarray, at_once: int, touch: Callable[[], None] = lambda: None
) -> dict[str, float]:
    """Mean and median angle of these events in degrees."""
    degrees = angles(model, batches, events, at_once, touch)
    return {ANGLE: float(degrees.mean()), "median_angle_degrees": float(degrees.median())}


def spread_over(events: int, count: int, key: str) -> np.ndarray:
    """So many of the events, evenly. BadInput, with the key that asks for them, where there are fewer."""
    if count > events:
        raise BadInput(f"{key} {count} is more than the {events} events of its split: lower it")
    return np.linspace(0, events - 1, count).astype(np.int64)
