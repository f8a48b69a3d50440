"""Training that continues bit for bit.

`train_problem` takes a problem (a model, a loss of (model, batch), a function positions -> batch, and an evaluation)
and a schedule; it knows no study and no Prefect. Validation, best model and metric rows happen only at steps which the
budget fixes; a checkpoint taken because time passed changes nothing.
"""

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from storage.errors import BadInput, NumericalFailure, Stop
from tasks.stage.execution import Execution
from tasks.stage.generators import generator_tensors
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.ahead import ahead_of
from tasks.training.budget import Budget
from tasks.training.compiled import compiled, explain_compiler
from tasks.training.culprits import FailedStep, Step, locate
from tasks.training.gradients import GradientNorms, advice, measured, norm_in_fp64
from tasks.training.guard import Guarded
from tasks.training.loader import MicroBatches, examples_of, micro_batches
from tasks.training.memory import DoesNotFit, MicroBatchSize, explain_out_of_memory
from tasks.training.phases import Clock
from tasks.training.problem import Problem
from tasks.training.recovery import go_back, skip
from tasks.training.saver import Saver, require_disk_for_checkpoints
from tasks.training.schedule import Schedule
from tasks.training.state import Position, State, StepStart
from tasks.training.trivial import compared, require_learning, require_usable_gate

METRICS_EVERY_STEPS = 10


def train_problem(run: StageRun, problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> Position:
    """Trains to the last step, or raises Stop after saving. Returns the final position.

    On return `problem.model` has the weights (with `ema_decay` the averaged ones) of the best value of the metric
    that decides, ties: the earlier. With patience the training may have ended early: the position says where.
    """
    state = initial_state(problem, schedule)
    train_to_the_end(run, problem, schedule, state, seed, execution)
    return state.position


def initial_state(problem: Problem, schedule: Schedule) -> State:
    """The state before the first step."""
    problem.model.train()
    position = Position(guard=Guarded() if schedule.budget.guard else None)
    return State(problem.model, problem.optimizer, position, _average(problem.model, schedule.budget.ema_decay))


def train_to_the_end(
    run: StageRun, problem: Problem, schedule: Schedule, state: State, seed: int, execution: Execution
) -> None:
    """`train_problem` for a caller that needs `state.position` also when the training fails."""
    run.begin_training()
    run.take_over(problem)
    require_usable_gate(schedule, problem)
    with run.watched(execution.stall_minutes):  # a disk can hang in the first read as in any later one
        _restore(run, state)
        require_disk_for_checkpoints(run, state, execution.keep_checkpoints)
        _continue(run, problem, schedule, state, seed, execution)
    if state.position.guard:
        state.position.guard.require_few_skipped(state.position.step)
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
    limit = _last_step_of_this_attempt(state.position.step, schedule, execution)
    sizes, clock, guard = MicroBatchSize(run, execution), Clock(run), schedule.budget.guard
    network = compiled(problem.model, execution)
    goes_back_to, state.ahead = schedule.fixed_checkpoint if guard else None, ahead_of(state, schedule)
    with matmul_precision(problem.model, schedule.budget), Saver(run, execution, state, goes_back_to) as saver:
        if guard and state.position.step == 0:
            saver.save(start=True)
        while not _at_the_end(schedule, state.position):
            try:
                _make_steps(run, problem, schedule, state, seed, execution, saver, clock, sizes, network, limit)
            except NumericalFailure as error:
                undone = go_back(run, schedule, state, saver, error)
                if undone is None:
                    raise (locate(run, problem, error) if isinstance(error, FailedStep) else error) from None
                limit = max(limit - undone, state.position.step + 1)
        saver.finish()


def _make_steps(
    run: StageRun,
    problem: Problem,
    schedule: Schedule,
    state: State,
    seed: int,
    execution: Execution,
    saver: Saver,
    clock: Clock,
    sizes: MicroBatchSize,
    network: nn.Module,
    limit: float,
) -> None:
    """Makes steps of one size of micro-batches, up to the last; raises Stop after step `limit`."""
    position, size = state.position, sizes.after(state.position)
    with micro_batches(
        problem.batch, schedule, problem.order, seed, position.step, size, execution.loader_workers
    ) as batches:
        while not _at_the_end(schedule, position) and sizes.after(position) == size:
            if position.step >= limit or run.stop.requested:
                if not _look(schedule, state):
                    return
                saver.finish()
                run.stop.check(f"step {position.step:,}")
                raise Stop(
                    "out_of_time", f"stopped after step {position.step:,}, this run's share ({_limits_set(execution)})"
                )
            started = time.monotonic()
            window = clock.waited_for(batches)
            if not _make_step(run, problem, schedule, state, seed, execution, window, sizes, network):
                return
            seconds = time.monotonic() - started
            saver.stepped(seconds)
            clock.stepped(position.step, seconds)
            due = saver.due() or position.step in schedule.validation_steps
            if not _look(schedule, state, leave=0 if due or _acts_after(problem, schedule, position.step) else 1):
                return
            _after_step(run, problem, schedule, state)
            if due:
                saver.save()
            _report(run, problem, schedule, position)


def _make_step(
    run: StageRun,
    problem: Problem,
    schedule: Schedule,
    state: State,
    seed: int,
    execution: Execution,
    batches: MicroBatches,
    sizes: MicroBatchSize,
    network: nn.Module,
) -> bool:
    """Makes or skips a step; False where memory ended, and it is to be made again with less."""
    guard, size = schedule.budget.guard, sizes.after(state.position)
    again = execution.fit_memory or (guard and guard.max_skips)
    start = StepStart(problem.model) if again else None
    try:
        with explain_out_of_memory(problem.model, execution, size), explain_compiler(execution):
            optimizer_step(problem, schedule, state, batches, size, seed, network=network)
        return True
    except FailedStep as error:
        if skip(run, problem, guard, state, start, error):
            return True
        raise
    except DoesNotFit:
        examples = schedule.window(state.position.step + 1)[2]
        if start is None or state.changing or not sizes.halve(state.position, examples, problem.model):
            raise
    assert start is not None
    start.restore(state)
    gc.collect()  # the error held the tensors of the step
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    return False


def _look(schedule: Schedule, state: State, leave: int = 0) -> bool:
    """Looks at the steps that the host is ahead of, but the newest `leave`; False where one is to be made again."""
    return state.ahead is None or state.ahead.look(state, schedule.budget.max_gradient_norm, leave)


def _acts_after(problem: Problem, schedule: Schedule, step: int) -> bool:
    """True if `_after_step` has anything to do; it has at validations."""
    return step in problem.checks or step % METRICS_EVERY_STEPS == 0 or step % schedule.steps_per_epoch == 0


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


def _last_step_of_this_attempt(began_at: int, schedule: Schedule, execution: Execution) -> float:
    limits = []
    if execution.max_steps_per_run is not None:
        limits.append(began_at + execution.max_steps_per_run)
    if execution.max_epochs_per_run is not None:
        limits.append(began_at + max(1, math.ceil(execution.max_epochs_per_run * schedule.steps_per_epoch)))
    return min(limits, default=math.inf)


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
    network: nn.Module | None = None,
) -> None:
    """Accumulates the micro-batches of one window, each divided by the weight of the whole window, and steps.

    `see` is called with the global norm of the gradients while they are in the model, finite and not yet clipped.
    `network` is the model in another form, compiled for example, in which it computes the losses.
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
        group["lr"] = _learning_rate(schedule, state.position, step)
    ahead = None if state.ahead is None or state.ahead.waits_at == step else state.ahead
    start = StepStart(problem.model) if ahead else None
    sums, examples = [], []
    for indices, batch in islice(batches, math.ceil(count / micro_batch_examples)):
        micro_sum = _summed(problem, budget, problem.model if network is None else network, batch)
        (micro_sum / weight).backward()
        sums.append(micro_sum.detach())
        examples.append(indices)
    gradients = [p.grad for p in state.parameters if p.grad is not None]
    total = nn.utils.get_total_norm(gradients)
    numbers, found_inf = torch.stack([*sums, total]), None
    if ahead and start:
        found_inf = ahead.launch(start, step, weight, numbers)
    else:
        *loss_sums, norm = numbers.tolist()  # the only moment of a step that waits for a GPU
        if not math.isfinite(norm):
            norm = float(total := norm_in_fp64(gradients))
        attempted = Step(step, epoch, examples, weight, generators, budget.precision == "bf16")
        _require_finite(problem.model, attempted, loss_sums, norm)  # before clipping spreads what is not finite
        loss, guarded = sum(loss_sums) / weight, state.position.guard
        if budget.guard and guarded:
            guarded.require_no_spike(budget.guard, step, loss, np.concatenate(examples).tolist())
            guarded.add(loss)
        see(norm)
        state.position.count(loss_sums, norm, weight, budget.max_gradient_norm)
    state.changing = True
    nn.utils.clip_grads_with_norm_(state.parameters, budget.max_gradient_norm, total)
    problem.optimizer.found_inf = found_inf  # as torch's GradScaler hands it over
    problem.optimizer.step()
    problem.optimizer.zero_grad(set_to_none=True)
    if state.average is not None:
        state.average.update_parameters(problem.model)
    state.position.step = step
    state.changing = False


def _summed(problem: Problem, budget: Budget, network: nn.Module, batch: Any) -> torch.Tensor:
    device = next(problem.model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=budget.precision == "bf16"):
        return problem.losses(network, batch).float().sum()


def _learning_rate(schedule: Schedule, position: Position, step: int) -> float:
    """The rate used in `step`: that of the schedule, divided for each time that the training went back."""
    rate, guard = schedule.learning_rate(step), schedule.budget.guard
    return rate / position.guard.divisor(guard) if guard and position.guard else rate


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
    row = {"step": position.step, "learning_rate": _learning_rate(schedule, position, position.step)}
    if position.recent_examples:  # or all these steps were skipped
        row["train_loss"] = position.recent_loss_sum / position.recent_examples
    run.metrics.append(row)
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
    further = metrics | compared(value, problem.trivial, problem.higher_decides)
    run.metrics.append({"step": position.step, problem.decides: value, **further})
    run.timing.append({"validation": position.step, "seconds": time.monotonic() - started, "at": time.time()})
    position.validations.append([position.step, value])
    if metrics:  # in the order in which a checkpoint gives it back
        position.further_metrics.append(dict(sorted({"step": position.step, **metrics}.items())))
    best = position.best_value
    if best is None or (value > best if problem.higher_decides else value < best):
        position.best_step, position.best_value = position.step, value


def _report(run: StageRun, problem: Problem, schedule: Schedule, position: Position) -> None:
    name = problem.decides.removeprefix("validation_").replace("_", " ")
    run.progress.update(
        position.step,
        schedule.total_steps,
        "steps",
        note=f"{name} {position.validations[-1][1]:.4f} at validation" if position.validations else "training",
        epoch=position.step / schedule.steps_per_epoch,
    )
