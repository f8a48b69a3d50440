"""icecube-train: the training, with normalised inputs and the rate that the table recommends."""

import numpy as np
import torch

from tasks.icecube.batches import EventBatches
from tasks.icecube.network import DirectionNetwork, predicted
from tasks.icecube.numbers import SAME, budget_of
from tasks.icecube.results import TrainResult
from tasks.icecube.stages import TrainConfig
from tasks.icecube.training import Prepared, spread_over
from tasks.stage.run import StageInput, StageRun
from tasks.training.invariance import Way, require_invariant
from tasks.training.loop import train_problem
from tasks.training.schedule import Schedule
from tasks.training.trials.findings import Outputs
from tasks.training.trials.short import looked_at, require_diverse

CHECKED_EVENTS, PADDING = 64, 9
"""On how many events the network must say the same however they come."""


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
    budget, _ = budget_of(config, rates)
    prepared = Prepared.of(config, events, look, config.trained.inputs)
    problem = prepared.problem(config.trained, budget, config.seed, touch=run.progress.touch)
    schedule = Schedule(budget, len(prepared.data.train))
    train_problem(run, problem, schedule, config.seed, config.execution)

    model, batches = problem.model.eval(), prepared.batches(prepared.data.validation)
    with run.watched(config.execution.stall_minutes):
        found = looked_at_again(model, batches)
        require_diverse(found.outputs, config.min_spread_ratio, config.max_dead_share)
        prepared.keep(run, model, config.trained)
    return found


def looked_at_again(model: DirectionNetwork, batches: EventBatches) -> TrainResult:
    """On some events, whether the network says the same however they come, and other things of other events."""
    there = len(batches.files)
    checked = spread_over(there, min(there, CHECKED_EVENTS), "")
    largest = require_invariant(_ways(model, batches), checked, SAME)
    return TrainResult(outputs=_outputs(model, batches, checked), largest_difference=largest)


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
