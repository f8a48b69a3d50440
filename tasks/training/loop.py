"""Training that continues bit for bit.

`train_problem` takes a problem (a model, a loss of (model, batch), a function positions -> batch, and an evaluation)
and a schedule; it knows no study and no Prefect. Validation, best model and metric rows happen only at steps which the
budget fixes; a checkpoint taken because time passed changes nothing.
"""

import gc
import math
import time
from collections.abc import Iterator
from typing import NoReturn, TypeVar

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from storage.errors import NumericalFailure, Stop
from tasks.stage.execution import Execution
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.culprits import FailedStep, find_culprits, locate
from tasks.training.gradients import GradientNorms, measured
from tasks.training.loader import MicroBatches, micro_batches
from tasks.training.memory import DoesNotFit, MicroBatchSize, explain_out_of_memory
from tasks.training.problem import Problem
from tasks.training.result import compared, require_learning, require_usable_gate
from tasks.training.saver import Saver, require_disk_for_checkpoints
from tasks.training.schedule import Schedule
from tasks.training.state import Guarded, Position, State, StepStart
from tasks.training.step import ahead_of, compiled, explain_compiler, learning_rate, optimizer_step

METRICS_EVERY_STEPS = 10
Batch = TypeVar("Batch")


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
    position, decay = Position(guard=Guarded() if schedule.budget.guard else None), schedule.budget.ema_decay
    # an exponential moving average of the weights (Polyak and Juditsky, 1992)
    average = None if decay is None else AveragedModel(problem.model, multi_avg_fn=get_ema_multi_avg_fn(decay))
    return State(problem.model, problem.optimizer, position, average)


def train_to_the_end(
    run: StageRun, problem: Problem, schedule: Schedule, state: State, seed: int, execution: Execution
) -> None:
    """`train_problem` for a caller that needs `state.position` also when the training fails."""
    run.begin_training()
    require_usable_gate(schedule, problem)
    with run.watched(execution.stall_minutes):  # a disk can hang in the first read as in any later one
        _restore(run, state)
        require_disk_for_checkpoints(run, state, execution.keep_checkpoints)
        _Attempted(run, problem, schedule, state, seed, execution).train()
    if state.position.guard:
        state.position.guard.require_few_skipped(state.position.step)
    run.stop.check()  # the next attempt finds nothing left to train, and does the rest
    assert state.position.best_step is not None, "the last step is always validated"
    last = run.checkpoints.newest_verified()  # read back, with the best one
    assert last is not None and last.step == state.position.step
    state.load_best(run.checkpoints.verified(state.position.best_step))
    run.checkpoints.prune(execution.keep_checkpoints)


def _restore(run: StageRun, state: State) -> None:
    """Continues from the newest checkpoint that verifies, or starts; the metrics file is cut back to it."""
    checkpoint = run.checkpoints.newest_verified(lambda checkpoint: run.metrics.cut_back(checkpoint.state["metrics"]))
    if checkpoint is None:
        run.metrics.cut_back(None)
        return
    state.restore(checkpoint)
    run.log.info("goes on from the checkpoint of step %s", f"{checkpoint.step:,}", extra=FOR_THE_TERMINAL)


class _Attempted:
    """The part of a training that one attempt makes: from where `state` is to the last step, or to its share."""

    def __init__(
        self, run: StageRun, problem: Problem, schedule: Schedule, state: State, seed: int, execution: Execution
    ) -> None:
        self.run, self.problem, self.schedule = run, problem, schedule
        self.state, self.seed, self.execution = state, seed, execution
        self.sizes, self.waited = MicroBatchSize(run, execution), 0.0
        self.network = compiled(problem.model, execution)
        share = execution.max_steps_per_run
        self.limit = math.inf if share is None else state.position.step + share
        state.ahead = ahead_of(state, schedule)

    @property
    def position(self) -> Position:
        return self.state.position

    @property
    def at_the_end(self) -> bool:
        patience = self.schedule.budget.patience_validations
        return self.position.step == self.schedule.total_steps or self.position.out_of_patience(patience)

    def train(self) -> None:
        """Trains to the last step, which is saved; raises Stop on the way, after a save."""
        guard, state = self.schedule.budget.guard, self.state
        goes_back_to = self.schedule.fixed_checkpoint if guard else None
        with Saver(self.run, self.execution, state, goes_back_to) as self.saver:
            if guard and self.position.step == 0:
                self.saver.save(start=True)
            while not self.at_the_end:
                try:
                    self._make_steps()
                except NumericalFailure as error:
                    step = self.position.step
                    if not self._go_back(error):
                        failed = locate(self.run, self.problem, error) if isinstance(error, FailedStep) else error
                        raise failed from None
                    self.limit = max(self.limit - (step - self.position.step), self.position.step + 1)
            self.saver.finish()

    def _make_steps(self) -> None:
        """Makes steps of one size of micro-batches, up to the last; raises Stop after step `limit`."""
        position, size, problem, schedule = self.position, self.sizes.after(self.position), self.problem, self.schedule
        workers = self.execution.loader_workers
        with micro_batches(problem.batch, schedule, problem.order, self.seed, position.step, size, workers) as batches:
            while not self.at_the_end and self.sizes.after(position) == size:
                if position.step >= self.limit or self.run.stop.requested:
                    if self._look():
                        self._stop()
                    return
                started = time.monotonic()
                if not self._make_step(self._waited_for(batches), size):
                    return
                seconds = time.monotonic() - started
                self.saver.stepped(seconds)
                row = {"step": position.step, "seconds": seconds, "load_seconds": self.waited, "at": time.time()}
                self.run.timing.append(row)
                self.waited = 0.0
                due = self.saver.due() or position.step in schedule.validation_steps
                if not self._look(leave=0 if due or self._acts_after(position.step) else 1):
                    return
                self._after_step()
                if due:
                    self.saver.save()
                self._report()

    def _waited_for(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yields `batches`, and counts the time until each is there."""
        started = time.monotonic()
        for batch in batches:
            self.waited += time.monotonic() - started
            yield batch
            started = time.monotonic()

    def _stop(self) -> NoReturn:
        step = f"{self.position.step:,}"
        self.saver.finish()
        self.run.stop.check(f"step {step}")
        raise Stop("out_of_time", f"stopped after step {step}, this run's share (execution.max_steps_per_run)")

    def _make_step(self, batches: MicroBatches, size: int) -> bool:
        """Makes or skips a step; False where memory ended, and it is to be made again with less."""
        problem, state, guard = self.problem, self.state, self.schedule.budget.guard
        again = self.execution.fit_memory or (guard and guard.max_skips)
        start = StepStart(problem.model) if again else None
        try:
            with explain_out_of_memory(self.execution, size), explain_compiler(self.execution):
                optimizer_step(problem, self.schedule, state, batches, size, self.seed, network=self.network)
            return True
        except FailedStep as error:
            if not self._skip(start, error):
                raise
            return True
        except DoesNotFit:
            examples = self.schedule.window(self.position.step + 1)[2]
            if start is None or state.changing or not self.sizes.halve(self.position, examples, problem.model):
                raise
        assert start is not None
        start.restore(state)
        gc.collect()  # the error held the tensors of the step
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return False

    def _skip(self, start: StepStart | None, error: FailedStep) -> bool:
        """Leaves the state as it was at the `start` of the failed step, but for its number; False where it may not."""
        guard, guarded = self.schedule.budget.guard, self.position.guard
        if guard is None or guarded is None or start is None or guarded.skips_in_a_row >= guard.max_skips:
            return False
        try:
            culprits = find_culprits(self.problem, error.made)
        except RuntimeError as hindrance:  # gradients that cannot be asked for, as in some ways to save memory
            self.run.log.warning("the step to skip could not be looked at: %s", hindrance)
            culprits = None
        start.restore(self.state)
        examples = culprits.examples if culprits else error.examples
        self.position.step = error.step
        self.run.metrics.append(guarded.skip(error.step, examples))
        line = "step %s is skipped: %s is not finite, batch examples %s"
        self.run.log.warning(line, error.step, error.tensor, examples)
        return True

    def _go_back(self, error: NumericalFailure) -> bool:
        """Restores the newest checkpoint before the failed step that the budget fixes, for a lower rate from there;
        False where the guard does not go back any more."""
        guard, guarded = self.schedule.budget.guard, self.position.guard
        if guard is None or guarded is None or len(guarded.rollbacks) >= guard.max_rollbacks:
            return False
        back = self.schedule.fixed_checkpoint(error.step - 1)
        rollbacks = [*guarded.rollbacks, {"because": str(error), "from_step": error.step, "to_step": back}]
        self.state.optimizer.zero_grad(set_to_none=True)
        checkpoint = self.saver.go_back(back)
        self.run.metrics.cut_back(checkpoint.state["metrics"])
        self.state.restore(checkpoint)
        restored = self.position.guard
        assert restored is not None, "its budget has a guard"
        for rollback in rollbacks[len(restored.rollbacks) :]:
            restored.rollbacks.append(rollback)
            divided = {"learning_rate_divided_by": restored.divisor(guard)}
            self.run.metrics.append({"step": back, "went_back_from_step": rollback["from_step"], **divided})
        line = f"{error}: back to step {back:,}, with the learning rate divided by {restored.divisor(guard):g}"
        self.run.log.warning("%s", line, extra=FOR_THE_TERMINAL)
        return True

    def _look(self, leave: int = 0) -> bool:
        """Looks at the steps that the host is ahead of, but the newest `leave`; False where one is to be made again."""
        ahead, clip = self.state.ahead, self.schedule.budget.max_gradient_norm
        return ahead is None or ahead.look(self.state, clip, leave)

    def _acts_after(self, step: int) -> bool:
        """True if `_after_step` has anything to do; it has at validations."""
        return (
            step in self.problem.checks or step % METRICS_EVERY_STEPS == 0 or step % self.schedule.steps_per_epoch == 0
        )

    def _after_step(self) -> None:
        """Runs checks, metric rows and validation, at the steps that the configuration fixes."""
        schedule, position, step = self.schedule, self.position, self.position.step
        for check in self.problem.checks.get(step, []):
            check(self.problem.model)
        if step % METRICS_EVERY_STEPS == 0 or step in schedule.validation_steps:
            row = {"step": step, "learning_rate": learning_rate(schedule, position, step)}
            if position.recent_examples:  # or all these steps were skipped
                row["train_loss"] = position.recent_loss_sum / position.recent_examples
            self.run.metrics.append(row)
            position.recent_loss_sum, position.recent_examples = 0.0, 0
        if step % schedule.steps_per_epoch == 0 or step == schedule.total_steps:
            self._end_epoch()
        if step in schedule.validation_steps:
            self._validate()
            ends_early = self.at_the_end and step < schedule.total_steps
            require_learning(schedule, self.problem, position, ends_early)
            if ends_early:
                self._end_early()

    def _end_early(self) -> None:
        if self.position.gradient_norms.count:
            self._end_epoch()
        line = (
            f"ends early after step {self.position.step:,} of {self.schedule.total_steps:,}: no validation since step "
            f"{self.position.best_step:,} was better (budget.patience_validations is "
            f"{self.schedule.budget.patience_validations})"
        )
        self.run.log.info("%s", line, extra=FOR_THE_TERMINAL)

    def _end_epoch(self) -> None:
        """Writes the sizes of the epoch's gradients, and resets their counts."""
        position = self.position
        row = {"epoch": position.step / self.schedule.steps_per_epoch, **position.gradient_norms.row()}
        self.run.metrics.append({"step": position.step, **row})
        position.epochs.append(row)
        self.run.log.info("step %s: %s", position.step, measured(row, self.schedule.budget.max_gradient_norm))
        position.gradient_norms = GradientNorms()

    def _validate(self) -> None:
        problem, position, run, started = self.problem, self.position, self.run, time.monotonic()
        model = self.state.judged().eval()
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

    def _report(self) -> None:
        position, name = self.position, self.problem.decides.removeprefix("validation_").replace("_", " ")
        note = f"{name} {position.validations[-1][1]:.4f} at validation" if position.validations else "training"
        epoch = position.step / self.schedule.steps_per_epoch
        self.run.progress.update(position.step, self.schedule.total_steps, "steps", note=note, epoch=epoch)
