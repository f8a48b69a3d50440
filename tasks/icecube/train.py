"""The trainings: a table of rates, the gate that one batch can be fitted, the trials, and the one with what heals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from storage import durable
from storage.errors import BadInput
from tasks.data.normaliser import Normaliser
from tasks.icecube.batches import FEATURES, Batch, Batches, DirectionNetwork, EventBatches, angle, predicted
from tasks.icecube.events import EventFiles
from tasks.icecube.final_results import SAME, budget_of
from tasks.icecube.look import NORMALISER, best_constant
from tasks.icecube.pulses import Data
from tasks.icecube.results import ANGLE, CONSTANT, LookResult, OverfitResult, TrainResult
from tasks.icecube.stages import OverfitConfig, RatesConfig, TrainConfig, TrainsNetwork, TrialConfig
from tasks.icecube.study import Inputs, Network, Trained
from tasks.stage.numerics import device
from tasks.stage.run import StageInput, StageRun
from tasks.training.budget import Budget
from tasks.training.culprits import FOLDER
from tasks.training.invariance import Way, require_invariant
from tasks.training.loop import train_problem
from tasks.training.order import FileOrder, as_stored
from tasks.training.problem import Problem, adamw
from tasks.training.schedule import Schedule
from tasks.training.trials.findings import TrialEnd
from tasks.training.trials.short import fit_single_batch, looked_at, try_rate
from tasks.training.trials.short import trial as train_as_trial

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
        normaliser = Normaliser.load(look.path / NORMALISER) if inputs == "normalised" else Normaliser.none(FEATURES)
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

        def rows(split: str) -> list[dict[str, Any]]:
            all_at_once = np.arange(len(files)), self.config.execution.micro_batch_examples
            degrees = angles(model, batches, *all_at_once, run.progress.touch).tolist()
            columns = (files.event_ids.tolist(), files.batch_ids.tolist(), degrees)
            return [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True)]

        if finite:
            run.merge_records(run.each({"validation": "validation"}, rows, "splits"), ("event_id",))
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


CHECKED_EVENTS, PADDING = 64, 9
"""On how many events the network must say the same however they come."""


def rates(run: StageRun, config: RatesConfig, events: StageInput, look: StageInput) -> dict[str, float]:
    """icecube-rates: what learning rates do in a few steps. Records: one for each rate and seed, once it was tried."""
    table, prepared = config.table, Prepared.of(config, events, look, config.inputs)
    probe = spread_over(len(prepared.data.validation), table.probe_events, "rates.probe_events")
    trained = Trained(inputs=config.inputs, dropout=config.dropout)
    tries = [
        (f"rate-{number}-seed-{seed}", rate, seed) for number, rate in enumerate(table.rates) for seed in table.seeds
    ]

    def tried(which: tuple[str, float, int]) -> list[dict[str, Any]]:
        name, rate, seed = which
        budget = config.budget.model_copy(update={"learning_rate": rate})
        problem = prepared.problem(trained, budget, seed, judged=probe, touch=run.progress.touch)
        result = try_rate(problem, Schedule(budget, len(prepared.data.train)), seed, config.execution)
        return [{"name": name, "rate": rate, "seed": seed, **result.model_dump()}]

    with run.watched(config.execution.stall_minutes):
        run.merge_records(run.each(tries, tried, "tries", lambda which: f"rate {which[1]:g}"), ("name",))
    return {}


def overfit(run: StageRun, config: OverfitConfig, events: StageInput, look: StageInput) -> OverfitResult:
    """icecube-overfit: a gate of minutes before a training of hours. CheckFailed when one batch cannot be fitted."""
    prepared = Prepared.of(config, events, look, "normalised")
    files, at_once = prepared.data.train, config.execution.micro_batch_examples
    chosen = spread_over(len(files), config.batch.events, "overfit.events")
    batch = prepared.batches(files).held(chosen)
    problem = replace(
        prepared.problem(Trained(), config.budget, config.seed),
        batch=batch,
        evaluate=partial(judge, batches=batch, events=np.arange(len(chosen)), at_once=at_once),
        order=as_stored,
    )
    run.progress.update(0, 1, "batches", note="fits one batch")
    trivial = best_constant(files.azimuth[chosen], files.zenith[chosen]).best_constant_degrees  # of these few events
    schedule, limit = Schedule(config.budget, len(chosen)), config.batch.max_ratio * trivial
    with run.watched(config.execution.stall_minutes):
        after = fit_single_batch(problem, schedule, config.seed, config.execution, limit)
    return OverfitResult(after=after, trivial_degrees=trivial)


def trial(run: StageRun, config: TrialConfig, events: StageInput, look: StageInput) -> TrialEnd:
    """icecube-trial: a training as the recorded study did it, with one change; how it ends is the result.

    Publishes what the audit asks: `model/` of the last step, with records where that is finite; else the failed step.
    """
    prepared = Prepared.of(config, events, look, config.trained.inputs)
    problem = prepared.problem(config.trained, config.budget, config.seed, touch=run.progress.touch)
    schedule = Schedule(config.budget, len(prepared.data.train))
    end = train_as_trial(run, problem, schedule, config.seed, config.execution)
    if end.failure and (run.directory / FOLDER).exists():
        run.outputs.append(FOLDER)
    else:
        with run.watched(config.execution.stall_minutes):
            prepared.keep(run, problem.model.eval(), config.trained, finite=end.failure is None)
    if end.failure is None:
        return end
    named = [int(prepared.data.train.event_ids[index]) for index in end.failure.examples]
    return end.model_copy(update={"failure": end.failure.model_copy(update={"examples": named})})


def train(
    run: StageRun,
    config: TrainConfig,
    events: StageInput,
    look: StageInput,
    overfit: StageInput,
    rates: StageInput | None = None,
) -> TrainResult:
    """icecube-train. Publishes `model/`, with the normaliser. Records: the angle of every event of validation.

    `rates` is the table whose rate is taken, where one is.
    """
    budget, _ = budget_of(config, rates)
    prepared = Prepared.of(config, events, look, config.trained.inputs)
    problem = prepared.problem(config.trained, budget, config.seed, touch=run.progress.touch)
    schedule = Schedule(budget, len(prepared.data.train))
    train_problem(run, problem, schedule, config.seed, config.execution)

    model, batches = problem.model.eval(), prepared.batches(prepared.data.validation)
    with run.watched(config.execution.stall_minutes):
        outputs = looked_at_again(model, batches)
        prepared.keep(run, model, config.trained)
    return outputs


def looked_at_again(model: DirectionNetwork, batches: EventBatches) -> TrainResult:
    """On some events, whether the network says the same however they come, and other things of other events."""
    there = len(batches.files)
    checked = spread_over(there, min(there, CHECKED_EVENTS), "")
    largest = require_invariant(_ways(model, batches), checked, SAME)
    units = {name: module for name, module in model.named_modules() if name.endswith("linear1")}
    # each event alone, so that no unit is kept alive by padding
    outputs = looked_at(units, lambda: _alone(model, batches, checked), batches(checked).directions)
    return TrainResult(outputs=outputs, largest_difference=largest)


def _ways(model: DirectionNetwork, batches: EventBatches) -> dict[str, Way]:
    """The ways in which an event can come to the network."""
    return {
        "among others": lambda events: predicted(model, batches(events), len(events)),
        "alone": lambda events: _alone(model, batches, events),
        "padded": lambda events: predicted(model, batches(events).padded(PADDING), len(events)),
        "in chunks": lambda events: predicted(model, batches(events), 7),
    }


def _alone(model: DirectionNetwork, batches: EventBatches, events: np.ndarray) -> torch.Tensor:
    return torch.cat([predicted(model, batches(np.array([event])), 1) for event in events])
