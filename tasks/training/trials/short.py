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

A model that says the same of different examples has collapsed, and has stopped learning. A loss that stands near a
trivial value does not say why. A head whose units are all dead, or outputs that are the same for every example, do; and
both can hide behind a metric that looks like slow learning.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack

import torch
from torch import nn

from storage.errors import NotLearning, NumericalFailure, require
from tasks.stage.execution import Execution
from tasks.stage.run import StageRun
from tasks.training.loader import micro_batches
from tasks.training.loop import initial_state, train_to_the_end
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import State
from tasks.training.step import optimizer_step
from tasks.training.trials.findings import Failure, Outputs, TrialEnd, Tried


def make_steps(
    problem: Problem, schedule: Schedule, seed: int, execution: Execution, see: Callable[[float], None]
) -> None:
    """Makes every step of `schedule`; what the model was before is lost. `see` gets the gradient norm of each step.

    NumericalFailure as a training.
    """
    state, size = initial_state(problem, schedule), execution.micro_batch_examples
    workers = execution.loader_workers
    with micro_batches(problem.batch, schedule, problem.order, seed, 0, size, workers) as batches:
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
    before, norms = probed(problem), [0.0]
    try:
        make_steps(problem, schedule, seed, execution, norms.append)
        after = probed(problem)
        if not math.isfinite(after):
            raise NumericalFailure(schedule.total_steps, [], f"the {problem.decides.replace('_', ' ')}")
    except NumericalFailure as error:
        failed = f"{error.tensor} at step {error.step}"
        return Tried(change=None, gradient_norm_max=max(norms), failed=failed)
    return Tried(change=after - before, gradient_norm_max=max(norms))


def fit_single_batch(problem: Problem, schedule: Schedule, seed: int, execution: Execution, limit: float) -> float:
    """Trains `problem` on all examples of `schedule` in each step; what it was before is lost, and nothing is kept.

    `problem.evaluate` measures the same examples; returns that metric after the steps. CheckFailed unless it is at most
    `limit`; NumericalFailure as a training.
    """
    before = probed(problem)
    make_steps(problem, schedule, seed, execution, lambda norm: None)
    after = probed(problem)
    require(
        after <= limit,
        "the model fits one batch",
        f"{after:.4g} after {schedule.total_steps:,} steps on the same {schedule.examples:,}, from {before:.4g}",
        f"at most {limit:.4g}",
        "More data heals no such fault: look at the size of the inputs, the learning rate, and whether every weight "
        "has a gradient",
    )
    return after


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


def spread(values: torch.Tensor) -> float:
    """The root of the mean squared distance from the mean, of values [N, D]; in their unit."""
    values = values.double()
    return float((values - values.mean(0)).square().sum(1).mean().sqrt())


def looked_at(units: Mapping[str, nn.Module], outputs: Callable[[], torch.Tensor], truth: torch.Tensor) -> Outputs:
    """Calls `outputs`, the model's outputs [N, D] for the examples of `truth` [N, D], and watches `units` meanwhile.

    `units` are modules by name whose outputs [..., units] a rectifier follows: a unit is dead when none of its values
    is above 0.
    """
    alive: dict[str, torch.Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        def see(_: nn.Module, __: tuple[torch.Tensor, ...], values: torch.Tensor) -> None:
            above = (values > 0).flatten(0, -2).any(0)
            alive[name] = alive[name] | above if name in alive else above

        return see

    with ExitStack() as hooks:
        for name, module in units.items():
            hooks.enter_context(module.register_forward_hook(watch(name)))
        given = outputs()
    dead = {name: 1 - float(alive[name].double().mean()) for name in units}
    return Outputs(spread_ratio=spread(given) / spread(truth), dead_shares=dead)
