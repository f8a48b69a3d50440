"""icecube-train: the training, with normalised inputs and the rate that the table recommends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from safetensors.torch import save_file

from storage import durable
from storage.errors import CheckFailed
from tasks.data.normaliser import Normaliser
from tasks.icecube.batches import FEATURES, EventBatches
from tasks.icecube.network import DirectionNetwork, predicted
from tasks.icecube.results import RatesResult, TrainResult
from tasks.icecube.stages import TrainConfig
from tasks.icecube.training import Prepared, angles, spread_over
from tasks.stage.run import StageInput, StageRun
from tasks.training.budget import Budget
from tasks.training.invariance import Way, require_invariant
from tasks.training.loop import train_problem
from tasks.training.result import described
from tasks.training.schedule import Schedule
from tasks.training.trials.collapse import looked_at, require_diverse
from tasks.training.trials.findings import Outputs
from tasks.training.weights import weights_digest

CHECKED_EVENTS, PADDING, TOLERANCE = 64, 9, 1e-3
"""On how many events the network must say the same however they come, to within so much of a unit vector."""
EVENTS_IN_A_PART = 50_000
COLUMNS = ("event_id", "batch_id", "angle_degrees")


def train(
    run: StageRun,
    config: TrainConfig,
    events: StageInput,
    look: StageInput,
    overfit: StageInput,
    rates: StageInput | None = None,
) -> TrainResult:
    """Publishes `model/`, with the normaliser. Records: the angle of every event of validation.

    `rates` is the table whose rate is taken, where one is.
    """
    budget, because = _budget(config, rates)
    prepared = Prepared.of(config, events, look, config.trained.inputs)
    problem = prepared.problem(config.trained, budget, config.seed, touch=run.progress.touch)
    schedule = Schedule(budget, len(prepared.data.train))
    position = train_problem(run, problem, schedule, config.seed, config.execution)

    model, batches = problem.model.eval(), prepared.batches(prepared.data.validation)
    with run.watched(config.execution.stall_minutes):
        there = len(prepared.data.validation)
        checked = spread_over(there, min(there, CHECKED_EVENTS), "")
        largest = require_invariant(_ways(model, batches), checked, TOLERANCE)
        outputs = _outputs(model, batches, checked)
        require_diverse(outputs, config.min_spread_ratio, config.max_dead_share)
        found, digest = _records(run, config, model, batches)
    _publish(run, config, model, prepared.normaliser)
    return TrainResult(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        learning_rate=budget.learning_rate,
        rate_because=because,
        training=described(schedule, problem, position),
        mean_degrees=float(found.mean()),
        median_degrees=float(np.median(found)),
        outputs=outputs,
        largest_difference=largest,
        normaliser_digest=prepared.normaliser.digest,
        weights_digest=weights_digest(run.directory / "model"),
        records_digest=digest,
    )


def _budget(config: TrainConfig, rates: StageInput | None) -> tuple[Budget, str]:
    """The budget with its rate, and why it is that one. CheckFailed where the table recommends none."""
    if rates is None or config.rate_limits is None:
        return config.budget, "as configured (budget.learning_rate)"
    found = RatesResult.read(rates).recommended(config.rate_limits)
    if found.rate is None:
        raise CheckFailed(
            "a learning rate is recommended for the training",
            "none",
            "one",
            f"{found.because}. Try other rates (rates.rates) or more steps (rates.steps); or take one without a "
            "recommendation: take_recommended_rate=false, and budget.learning_rate",
        )
    return config.budget.model_copy(update={"learning_rate": found.rate}), found.because


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


def _outputs(model: DirectionNetwork, batches: EventBatches, events: np.ndarray) -> Outputs:
    """Spread of the directions, and dead units; each event alone, so that no unit is kept alive by padding."""
    units = {name: module for name, module in model.named_modules() if name.endswith("linear1")}
    return looked_at(units, lambda: _alone(model, batches, events), batches(events).directions)


def _records(
    run: StageRun, config: TrainConfig, model: DirectionNetwork, batches: EventBatches
) -> tuple[np.ndarray, str]:
    """The angle of every event of validation in degrees [N], and the digest of the records that hold it."""
    files, at_once = batches.files, config.execution.micro_batch_examples

    def rows(first: int) -> list[dict[str, Any]]:
        some = np.arange(first, min(first + EVENTS_IN_A_PART, len(files)))
        found = angles(model, batches, some, at_once, run.progress.touch)
        of_part = zip(files.event_ids[some].tolist(), files.batch_ids[some].tolist(), found.tolist(), strict=True)
        return [dict(zip(COLUMNS, row, strict=True)) for row in of_part]

    parts = {f"validation-{first:010d}": first for first in range(0, len(files), EVENTS_IN_A_PART)}
    digest = run.merge_records(run.each(parts, rows, "parts"), ("event_id",))
    return pq.read_table(run.directory / "records.parquet")["angle_degrees"].to_numpy(), digest


def _publish(run: StageRun, config: TrainConfig, model: DirectionNetwork, normaliser: Normaliser) -> None:
    """Weights, shape and normaliser together: whoever loads the one has the other."""
    with run.publish("model") as folder:
        save_file(model.cpu().state_dict(), folder / "model.safetensors")
        shape = config.network.model_dump() | {"batch_norm": config.trained.batch_norm}
        durable.write_json(folder / "config.json", shape | {"features": list(FEATURES)})
        normaliser.save(folder)
