"""Training that continues bit for bit.

`train` takes a model, a loss of (model, batch), a function positions -> batch, and an evaluation; it knows no study
and no Prefect. State = model, optimizer, RNG, step, best metric; the data order and the learning rate are pure
functions of the step, so they need none. Validation, best model and metric rows happen only at steps which the
budget fixes; a checkpoint taken because time passed changes nothing.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from storage.checkpoints import Checkpoint
from storage.errors import NumericalFailure, Stop
from tasks.execution import Execution
from tasks.stage import StageRun
from tasks.training.order import example_at
from tasks.training.schedule import Schedule

METRICS_EVERY_STEPS = 10


@dataclass
class Problem:
    """What is trained: the only part that differs between studies.

    `batch(indices)` gives the examples at those dataset indices, on the model's device. `losses(model, batch)`
    gives one loss an example, [B]; an example's weight in a step does not depend on how it was batched.
    `evaluate(model)` gives the validation loss. `checks` run after the step that is their key.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[np.ndarray], Any]
    losses: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], float]
    checks: dict[int, list[Callable[[nn.Module], None]]] = field(default_factory=dict)


@dataclass
class Position:
    """How far a training is: what a checkpoint keeps beside tensors."""

    step: int = 0
    best_step: int | None = None
    best_loss: float | None = None
    recent_loss_sum: float = 0.0
    recent_examples: int = 0
    validations: list[list[float]] = field(default_factory=list)


def train(run: StageRun, problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> Position:
    """Trains to the last step, or raises Stop after saving. Returns the final position.

    On return the newest checkpoint is of the last step and `best_checkpoint` finds the one of the lowest
    validation loss (ties: the earlier).
    """
    position = _restore(run, problem)
    began_at, saved_at, saved_step = position.step, time.monotonic(), position.step
    validations = schedule.validation_steps()
    limit = _last_step_of_this_run(began_at, schedule, execution)
    while position.step < schedule.total_steps:
        if position.step >= limit or run.stop.requested:
            if position.step != saved_step:
                save(run, problem, position, execution)
            run.stop.check()
            raise Stop("out_of_time", f"this run's share is done at step {position.step}; the same command goes on")
        step, started = position.step + 1, time.monotonic()
        _optimizer_step(problem, schedule, seed, step, execution, position)
        position.step = step
        for check in problem.checks.get(step, []):
            check(problem.model)
        if step % METRICS_EVERY_STEPS == 0 or step in validations:
            _write_metrics(run, schedule, position)
        if step in validations:
            _validate(run, problem, position)
        due_by_steps = execution.checkpoint_every_steps and step % execution.checkpoint_every_steps == 0
        due_by_time = time.monotonic() - saved_at >= execution.checkpoint_every_seconds
        if step in validations or due_by_steps or due_by_time:
            save(run, problem, position, execution)
            saved_at, saved_step = time.monotonic(), step
        run.timing.append({"step": step, "seconds": time.monotonic() - started, "at": time.time()})
        run.progress.update(
            step,
            schedule.total_steps,
            "steps",
            note=f"loss {position.validations[-1][1]:.4f} at validation" if position.validations else "training",
            epoch=step / schedule.steps_per_epoch,
        )
    return position


def best_checkpoint(run: StageRun, position: Position) -> Checkpoint:
    """The verified checkpoint of the step with the lowest validation loss."""
    assert position.best_step is not None, "the last step is always validated"
    return run.checkpoints.verified(position.best_step)


def save(run: StageRun, problem: Problem, position: Position, execution: Execution) -> None:
    """Writes a checkpoint of `position` and removes those no longer needed."""
    model = {name: tensor.detach().cpu().contiguous() for name, tensor in problem.model.state_dict().items()}
    optimizer, groups = _optimizer_tensors(problem.optimizer)
    rng, rng_state = _rng_state()
    state = {
        "position": vars(position),
        "optimizer_groups": groups,
        "rng": rng_state,
        "metrics": run.metrics.position(),
    }
    run.checkpoints.save(position.step, {"model": _untied(model), "optimizer": optimizer, "rng": rng}, state)
    run.checkpoints.prune(execution.keep_checkpoints, also=position.best_step)


def _restore(run: StageRun, problem: Problem) -> Position:
    """Continues from the newest checkpoint that verifies, or starts; the metrics file is cut back to it."""

    def accept(found: Checkpoint) -> None:
        best_step = found.state["position"]["best_step"]
        if best_step not in (None, found.step):
            run.checkpoints.verified(best_step)  # without it the training could not end: go back to before it
        run.metrics.cut_back(found.state["metrics"])

    checkpoint = run.checkpoints.newest_verified(accept)
    if checkpoint is None:
        run.metrics.cut_back(None)
        return Position()
    load_model(problem.model, checkpoint)
    _load_optimizer(problem.optimizer, checkpoint)
    _load_rng(checkpoint)
    run.log.info("continuing from the checkpoint of step %s", checkpoint.step)
    return Position(**checkpoint.state["position"])


def _last_step_of_this_run(began_at: int, schedule: Schedule, execution: Execution) -> int:
    limits = [schedule.total_steps]
    if execution.max_steps_per_run is not None:
        limits.append(began_at + execution.max_steps_per_run)
    if execution.max_epochs_per_run is not None:
        limits.append(began_at + max(1, math.ceil(execution.max_epochs_per_run * schedule.steps_per_epoch)))
    return min(limits)


def _optimizer_step(
    problem: Problem, schedule: Schedule, seed: int, step: int, execution: Execution, position: Position
) -> None:
    """One window: accumulates its micro-batches, each scaled by what the whole window holds, and steps."""
    budget = schedule.budget
    epoch, first, count = schedule.window(step)
    indices = example_at(seed, epoch, np.arange(first, first + count), schedule.examples)
    problem.model.train()
    device = next(problem.model.parameters()).device
    for group in problem.optimizer.param_groups:
        group["lr"] = schedule.learning_rate(step)
    loss_sum = 0.0
    for start in range(0, count, execution.micro_batch_examples):
        chosen = indices[start : start + execution.micro_batch_examples]
        with torch.autocast(device.type, torch.bfloat16, enabled=budget.precision == "bf16"):
            losses_B = problem.losses(problem.model, problem.batch(chosen)).float()
        micro_sum = losses_B.sum()
        if not torch.isfinite(micro_sum):
            raise NumericalFailure(step, f"examples {chosen.tolist()}", "the loss")
        (micro_sum / count).backward()
        loss_sum += micro_sum.item()
    norm = nn.utils.clip_grad_norm_(problem.model.parameters(), budget.max_gradient_norm)
    if not torch.isfinite(norm):
        culprit = next(
            (
                name
                for name, p in problem.model.named_parameters()
                if p.grad is not None and not p.grad.isfinite().all()
            ),
            "the norm of all gradients",
        )
        raise NumericalFailure(step, f"examples {indices.tolist()}", f"the gradient of {culprit}")
    problem.optimizer.step()
    problem.optimizer.zero_grad(set_to_none=True)
    position.recent_loss_sum += loss_sum
    position.recent_examples += count


def _write_metrics(run: StageRun, schedule: Schedule, position: Position) -> None:
    run.metrics.append(
        {
            "step": position.step,
            "train_loss": position.recent_loss_sum / position.recent_examples,
            "learning_rate": schedule.learning_rate(position.step),
        }
    )
    position.recent_loss_sum, position.recent_examples = 0.0, 0


def _validate(run: StageRun, problem: Problem, position: Position) -> None:
    problem.model.eval()
    loss = problem.evaluate(problem.model)
    if not math.isfinite(loss):
        raise NumericalFailure(position.step, "validation", "the validation loss")
    run.metrics.append({"step": position.step, "validation_loss": loss})
    position.validations.append([position.step, loss])
    if position.best_loss is None or loss < position.best_loss:
        position.best_step, position.best_loss = position.step, loss


def _untied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each storage once: safetensors refuses shared memory, and loading one name sets the tied ones too."""
    seen: dict[int, str] = {}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.numel() == 0 or seen.setdefault(tensor.data_ptr(), name) == name
    }


def load_model(model: nn.Module, checkpoint: Checkpoint) -> None:
    """Loads every tensor; only names that are tied to a loaded one may be absent."""
    tensors = checkpoint.tensors("model")
    expected = set(_untied({name: tensor.detach() for name, tensor in model.state_dict().items()}))
    if not expected <= set(tensors):
        raise ValueError(f"{checkpoint.path} lacks {sorted(expected - set(tensors))}")
    unexpected = model.load_state_dict(tensors, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"{checkpoint.path} holds {unexpected}, which the model does not have")


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, torch.Tensor], list[Any]]:
    state = optimizer.state_dict()
    tensors = {
        f"{index}.{key}": value.detach().cpu().contiguous()
        for index, entries in state["state"].items()
        for key, value in entries.items()
        if torch.is_tensor(value)
    }
    return tensors, state["param_groups"]


def _load_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in checkpoint.tensors("optimizer").items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": checkpoint.state["optimizer_groups"]})


def _rng_state() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(tensors, JSON) of every generator: torch CPU, each GPU, Python, NumPy."""
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"cuda.{index}"] = state
    kind, keys, place, has_gauss, gauss = np.random.get_state()
    version, numbers, gauss_next = random.getstate()
    return tensors, {
        "numpy": [kind, keys.tolist(), int(place), int(has_gauss), float(gauss)],
        "python": [version, list(numbers), gauss_next],
    }


def _load_rng(checkpoint: Checkpoint) -> None:
    tensors, state = checkpoint.tensors("rng"), checkpoint.state["rng"]
    torch.set_rng_state(tensors["torch"])
    gpus = [tensors[name] for name in sorted(tensors) if name.startswith("cuda.")]
    if gpus and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(gpus)
    kind, keys, place, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), place, has_gauss, gauss))
    version, numbers, gauss_next = state["python"]
    random.setstate((version, tuple(numbers), gauss_next))
