"""Training that continues bit for bit.

`train` takes a problem (a model, a loss of (model, batch), a function positions -> batch, and an evaluation) and a
schedule; it knows no study and no Prefect. Validation, best model and metric rows happen only at steps which the
budget fixes; a checkpoint taken because time passed changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from storage.errors import BadInput, NumericalFailure, Stop
from tasks.stage.execution import Execution
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.budget import Budget
from tasks.training.culprits import FailedStep, Step, locate
from tasks.training.gradients import GradientNorms, advice, measured, norm_in_fp64
from tasks.training.loader import MicroBatches, examples_of, micro_batches
from tasks.training.memory import explain_out_of_memory
from tasks.training.problem import Problem
from tasks.training.saver import Saver, require_disk_for_checkpoints
from tasks.training.schedule import Schedule
from tasks.training.state import Position, State, generator_tensors
from tasks.training.trivial import compared, require_learning, require_usable_gate

METRICS_EVERY_STEPS = 10


def train(run: StageRun, problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> Position:
    """Trains to the last step, or raises Stop after saving. Returns the final position.

    On return `problem.model` has the weights (with `ema_decay` the averaged ones) of the lowest value of the metric
    that decides, ties: the earlier. With patience the training may have ended early: the position says where.
    """
    state = initial_state(problem, schedule)
    train_to_the_end(run, problem, schedule, state, seed, execution)
    return state.position


def initial_state(problem: Problem, schedule: Schedule) -> State:
    """The state before the first step."""
    problem.model.train()
    return State(problem.model, problem.optimizer, Position(), _average(problem.model, schedule.budget.ema_decay))


def train_to_the_end(
    run: StageRun, problem: Problem, schedule: Schedule, state: State, seed: int, execution: Execution
) -> None:
    """`train` for a caller that needs `state.position` also when the training fails."""
    run.take_over(problem)
    require_usable_gate(schedule, problem)
    with run.watched(execution.stall_minutes):  # a disk can hang in the first read as in any later one
        _restore(run, state)
        require_disk_for_checkpoints(run, state, execution.keep_checkpoints)
        _continue(run, problem, schedule, state, seed, execution)
    run.stop.check()  # the next attempt finds nothing left to train, and does the rest
    assert state.position.best_step is not None, "the last step is always validated"
    last = run.checkpoints.newest_verified()  # read back, with the best one
    assert last is not None and last.step == state.position.step
    state.load_best(run.checkpoints.verified(state.position.best_step))
    run.checkpoints.prune(execution.keep_checkpoints)


def _continue(
    run: StageRun, problem: Problem, schedule: Schedule, state: State, seed: int, execution: Execution
) -> None:
    """Trains from `state` to the last step, which is saved; raises Stop on the way, after a save."""
    limit = _last_step_of_this_run(state.position.step, schedule, execution)
    with (
        matmul_precision(problem.model, schedule.budget),
        Saver(run, execution, state) as saver,
        micro_batches(
            problem.batch,
            schedule,
            problem.order,
            seed,
            state.position.step,
            execution.micro_batch_examples,
            execution.loader_workers,
        ) as batches,
    ):
        while not _at_the_end(schedule, state.position):
            if state.position.step >= limit or run.stop.requested:
                saver.finish()
                run.stop.check(f"step {state.position.step:,}")
                raise Stop(
                    "out_of_time",
                    f"stopped after step {limit:,}, this run's share ({_limits_set(execution)})",
                )
            started = time.monotonic()
            try:
                with explain_out_of_memory(problem.model, execution):
                    optimizer_step(problem, schedule, state, batches, execution.micro_batch_examples, seed)
            except FailedStep as error:
                raise locate(run, problem, error) from None
            seconds = time.monotonic() - started
            saver.stepped(seconds)
            _after_step(run, problem, schedule, state)
            if state.position.step in schedule.validation_steps or saver.due():
                saver.save()
            _report(run, problem, schedule, state.position, seconds)
        saver.finish()


def _at_the_end(schedule: Schedule, position: Position) -> bool:
    patience = schedule.budget.patience_validations
    return position.step == schedule.total_steps or position.out_of_patience(patience)


def _restore(run: StageRun, state: State) -> None:
    """Continues from the newest checkpoint that verifies, or starts; the metrics file is cut back to it."""
    checkpoint = run.checkpoints.newest_verified(lambda checkpoint: run.metrics.cut_back(checkpoint.state["metrics"]))
    if checkpoint is None:
        run.metrics.cut_back(None)
        return
    state.restore(checkpoint)
    run.log.info("goes on from the checkpoint of step %s", f"{checkpoint.step:,}", extra=FOR_THE_TERMINAL)


def _last_step_of_this_run(began_at: int, schedule: Schedule, execution: Execution) -> int:
    limits = [schedule.total_steps]
    if execution.max_steps_per_run is not None:
        limits.append(began_at + execution.max_steps_per_run)
    if execution.max_epochs_per_run is not None:
        limits.append(began_at + max(1, math.ceil(execution.max_epochs_per_run * schedule.steps_per_epoch)))
    return min(limits)


def _limits_set(execution: Execution) -> str:
    names = ("max_steps_per_run", "max_epochs_per_run")
    return ", ".join(f"execution.{name}" for name in names if getattr(execution, name) is not None)


def _average(model: nn.Module, decay: float | None) -> AveragedModel | None:
    """An exponential moving average of the weights (Polyak and Juditsky, 1992), or none."""
    return None if decay is None else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))


@contextmanager
def matmul_precision(model: nn.Module, budget: Budget) -> Iterator[None]:
    """Allows TF32 where the budget says so; elsewhere `tasks.stage.numerics` keeps it off."""
    if budget.precision == "tf32" and next(model.parameters()).device.type != "cuda":
        raise BadInput("budget.precision is tf32, which only a GPU has (Ampere or later): take fp32 or bf16 here")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = budget.precision == "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


def optimizer_step(
    problem: Problem,
    schedule: Schedule,
    state: State,
    batches: MicroBatches,
    micro_batch_examples: int,
    seed: int,
    see: Callable[[float], None] = lambda norm: None,
) -> None:
    """Accumulates the micro-batches of one window, each divided by the weight of the whole window, and steps.

    `see` is called with the global norm of the gradients while they are in the model, finite and not yet clipped.
    Raises FailedStep before anything of the model was changed.
    """
    budget, step = schedule.budget, state.position.step + 1
    epoch, _, count = schedule.window(step)
    weight: float = count
    if problem.weights is not None:
        weight = problem.window_weight(examples_of(schedule, problem.order, seed, step), epoch)
    if not problem.model.training:  # after a validation: to tell every module takes a millisecond
        problem.model.train()
    device = state.parameters[0].device
    generators = generator_tensors(device.type == "cuda")
    for group in problem.optimizer.param_groups:
        group["lr"] = schedule.learning_rate(step)
    sums, examples = [], []
    for indices, batch in islice(batches, math.ceil(count / micro_batch_examples)):
        with torch.autocast(device.type, torch.bfloat16, enabled=budget.precision == "bf16"):
            micro_sum = problem.losses(problem.model, batch).float().sum()
        (micro_sum / weight).backward()
        sums.append(micro_sum.detach())
        examples.append(indices)
    gradients = [p.grad for p in state.parameters if p.grad is not None]
    total = nn.utils.get_total_norm(gradients)
    *loss_sums, norm = torch.stack([*sums, total]).tolist()  # the only moment of a step that waits for a GPU
    if not math.isfinite(norm):
        norm = float(total := norm_in_fp64(gradients))
    attempted = Step(step, epoch, examples, weight, generators, budget.precision == "bf16")
    _require_finite(problem.model, attempted, loss_sums, norm)  # before clipping spreads what is not finite
    see(norm)
    nn.utils.clip_grads_with_norm_(state.parameters, budget.max_gradient_norm, total)
    problem.optimizer.step()
    problem.optimizer.zero_grad(set_to_none=True)
    if state.average is not None:
        state.average.update_parameters(problem.model)
    state.position.step = step
    state.position.recent_loss_sum += sum(loss_sums)
    state.position.recent_examples += weight
    state.position.gradient_norms.add(norm, budget.max_gradient_norm)


def _require_finite(model: nn.Module, attempted: Step, loss_sums: list[float], norm: float) -> None:
    """Raises FailedStep naming the batch and the tensor, before the weights change."""
    for loss_sum, indices in zip(loss_sums, attempted.examples, strict=True):
        if not math.isfinite(loss_sum):
            raise FailedStep(attempted, indices.tolist(), "the loss")
    if not math.isfinite(norm):
        culprit = next(
            name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()
        )
        raise FailedStep(attempted, np.concatenate(attempted.examples).tolist(), f"the gradient of {culprit}")


def _after_step(run: StageRun, problem: Problem, schedule: Schedule, state: State) -> None:
    """Runs checks, metric rows and validation, at the steps that the configuration fixes."""
    position, step = state.position, state.position.step
    for check in problem.checks.get(step, []):
        check(problem.model)
    if step % METRICS_EVERY_STEPS == 0 or step in schedule.validation_steps:
        _write_metrics(run, schedule, position)
    if step % schedule.steps_per_epoch == 0 or step == schedule.total_steps:
        _end_epoch(run, schedule, position)
    if step in schedule.validation_steps:
        _validate(run, problem, state)
        ends_early = _at_the_end(schedule, position) and step < schedule.total_steps
        require_learning(schedule, problem, position, ends_early)
        if ends_early:
            _end_early(run, schedule, position)


def _end_early(run: StageRun, schedule: Schedule, position: Position) -> None:
    if position.gradient_norms.count:
        _end_epoch(run, schedule, position)
    run.log.info(
        "ends early after step %s of %s: no validation since step %s was better (budget.patience_validations is %s)",
        f"{position.step:,}",
        f"{schedule.total_steps:,}",
        f"{position.best_step:,}",
        schedule.budget.patience_validations,
        extra=FOR_THE_TERMINAL,
    )


def _write_metrics(run: StageRun, schedule: Schedule, position: Position) -> None:
    run.metrics.append(
        {
            "step": position.step,
            "train_loss": position.recent_loss_sum / position.recent_examples,
            "learning_rate": schedule.learning_rate(position.step),
        }
    )
    position.recent_loss_sum, position.recent_examples = 0.0, 0


def _end_epoch(run: StageRun, schedule: Schedule, position: Position) -> None:
    """Writes the sizes of the epoch's gradients, and resets their counts."""
    row = {"epoch": position.step / schedule.steps_per_epoch, **position.gradient_norms.row()}
    run.metrics.append({"step": position.step, **row})
    position.epochs.append(row)
    describe = advice if len(position.epochs) == 1 else measured  # the advice is logged once, and is in the result
    run.log.info("step %s: %s", position.step, describe(row, schedule.budget.max_gradient_norm))
    position.gradient_norms = GradientNorms()


def _validate(run: StageRun, problem: Problem, state: State) -> None:
    position, model, started = state.position, state.judged(), time.monotonic()
    model.eval()
    metrics = problem.metrics(model)
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise NumericalFailure(position.step, [], f"the {name.replace('_', ' ')}")
    value = metrics.pop(problem.decides)
    further = metrics | compared(value, problem.trivial)
    run.metrics.append({"step": position.step, problem.decides: value, **further})
    run.timing.append({"validation": position.step, "seconds": time.monotonic() - started, "at": time.time()})
    position.validations.append([position.step, value])
    if metrics:  # in the order in which a checkpoint gives it back
        position.further_metrics.append(dict(sorted({"step": position.step, **metrics}.items())))
    if position.best_value is None or value < position.best_value:
        position.best_step, position.best_value = position.step, value


def _report(run: StageRun, problem: Problem, schedule: Schedule, position: Position, seconds: float) -> None:
    name = problem.decides.removeprefix("validation_").replace("_", " ")
    run.timing.append({"step": position.step, "seconds": seconds, "at": time.time()})
    run.progress.update(
        position.step,
        schedule.total_steps,
        "steps",
        note=f"{name} {position.validations[-1][1]:.4f} at validation" if position.validations else "training",
        epoch=position.step / schedule.steps_per_epoch,
    )
