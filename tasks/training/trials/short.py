"""Trainings whose failure is a result, and short ones that keep nothing: a learning rate tried, one batch fitted.

A trial is the training itself, with its checkpoints and its place in the run directory of a stage: killed anywhere, it
goes on bit for bit, and one that fails fails again at the same step with the same numbers, until the stage has its
marker. Nothing is trained twice to learn how a trial ended, so it may be as long as a training. A stage has room for
one: trials of a study are stages side by side.

What is asked after the steps of a rate is the metric on one fixed probe set: the loss of the moving batches varies more
between batches than a rate changes it.

A model that does not come down on the same few examples, step after step, has a fault that no more data heals: inputs
of a size that it cannot use, a loss without a gradient, weights that do not move. That it does come down shows little
more than this, so the gate stands before a training and never for one.
"""

import math
from collections.abc import Callable

from torch import nn

from storage.errors import CheckFailed, NotLearning, NumericalFailure
from tasks.stage.execution import Execution
from tasks.stage.run import StageRun
from tasks.training.gradients import norm_in_fp64
from tasks.training.loader import micro_batches
from tasks.training.loop import initial_state, train_to_the_end
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import State
from tasks.training.step import matmul_precision, optimizer_step
from tasks.training.trials.findings import Failure, SingleBatchFit, TrialEnd, Tried


def make_steps(
    problem: Problem, schedule: Schedule, seed: int, execution: Execution, see: Callable[[float], None]
) -> None:
    """Makes every step of `schedule`; what the model was before is lost. `see` gets the gradient norm of each step.

    NumericalFailure as a training.
    """
    state, size = initial_state(problem, schedule), execution.micro_batch_examples
    with (
        matmul_precision(problem.model, schedule.budget),
        micro_batches(problem.batch, schedule, problem.order, seed, 0, size, execution.loader_workers) as batches,
    ):
        for _ in range(schedule.total_steps):
            optimizer_step(problem, schedule, state, batches, size, seed, see)


def probed(problem: Problem) -> float:
    """The metric that decides, of the model as it is."""
    problem.model.eval()
    return problem.metrics(problem.model)[problem.decides]


def try_rate(problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> Tried:
    """Trains `problem` for the steps of `schedule` at its rate; what it was before is lost, and nothing is kept.

    `problem.evaluate` measures the probe set, before and after.
    """
    before = probed(problem)
    largest, parameter = 0.0, ""

    def see(norm: float) -> None:
        nonlocal largest, parameter
        if norm > largest:
            largest, parameter = norm, _largest_gradient(problem.model)

    try:
        make_steps(problem, schedule, seed, execution, see)
        after = probed(problem)
        if not math.isfinite(after):
            raise NumericalFailure(schedule.total_steps, [], f"the {problem.decides.replace('_', ' ')}")
    except NumericalFailure as error:
        failed = f"{error.tensor} at step {error.step}"
        return Tried(change=None, gradient_norm_max=largest, parameter=parameter, failed=failed)
    return Tried(change=after - before, gradient_norm_max=largest, parameter=parameter)


def _largest_gradient(model: nn.Module) -> str:
    norms = {name: norm_in_fp64([p.grad]) for name, p in model.named_parameters() if p.grad is not None}
    return max(norms, key=lambda name: float(norms[name]))


def fit_single_batch(problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> SingleBatchFit:
    """Trains `problem` on all examples of `schedule` in each step; what it was before is lost, and nothing is kept.

    `problem.evaluate` measures the same examples. ValueError where they are more than one batch; NumericalFailure as a
    training.
    """
    if schedule.steps_per_epoch != 1:
        raise ValueError(
            f"{schedule.examples} examples are more than one batch of {schedule.budget.effective_batch_examples}"
        )
    before, norms = probed(problem), [0.0]
    make_steps(problem, schedule, seed, execution, norms.append)
    return SingleBatchFit(
        examples=schedule.examples,
        steps=schedule.total_steps,
        before=before,
        after=probed(problem),
        gradient_norm_max=max(norms),
    )


def require_fit(fit: SingleBatchFit, trivial: float, max_ratio: float) -> None:
    """CheckFailed unless the metric after the steps is at most `max_ratio` of what a method without learning gets."""
    if not fit.after <= max_ratio * trivial:
        raise CheckFailed(
            "the model fits one batch",
            f"{fit.after:.4g} after {fit.steps:,} steps on the same {fit.examples:,} examples, from {fit.before:.4g}",
            f"at most {max_ratio * trivial:.4g}, {max_ratio:g} of the {trivial:.4g} that needs no learning",
            "More data heals no such fault: look at the size of the inputs, the learning rate, and whether every "
            "weight has a gradient",
        )


def trial(run: StageRun, problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> TrialEnd:
    """Trains as `train` does and says how that ended; metrics.jsonl has its numbers.

    `problem.model` is left with the weights of the last step, as they are validated: where a trial dips and falls apart
    later, the best ones would hide it. Raises what is no finding about the training: Stop, BadInput, CheckFailed, and
    errors of disk and memory.
    """
    state = initial_state(problem, schedule)
    failure = None
    try:
        train_to_the_end(run, problem, schedule, state, seed, execution)
        state.load_best(run.checkpoints.verified(state.position.step))
    except (NotLearning, NumericalFailure) as error:
        problem.model.load_state_dict(state.judged().state_dict())
        failure = _described(error) if isinstance(error, NumericalFailure) else None
    return TrialEnd(failure=failure, gradient_norm_max=_largest_norm(state))


def _largest_norm(state: State) -> float:
    """The largest finite norm, also of an epoch that was not finished."""
    epochs = (epoch["gradient_norm_max"] for epoch in state.position.epochs)
    return max([state.position.gradient_norms.largest, *epochs])


def _described(error: NumericalFailure) -> Failure:
    return Failure(
        step=error.step,
        tensor=error.tensor,
        module=error.module or None,
        examples=error.examples,
        of_examples=error.batch,
        together=error.together,
    )
