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
from tasks.training.trials.findings import Failure, Outputs, SingleBatchFit, TrialEnd, Tried


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


def spread(values: torch.Tensor) -> float:
    """The root of the mean squared distance from the mean, of values [N, D]; in their unit."""
    values = values.double()
    return float((values - values.mean(0)).square().sum(1).mean().sqrt())


def looked_at(units: Mapping[str, nn.Module], outputs: Callable[[], torch.Tensor], truth: torch.Tensor) -> Outputs:
    """Calls `outputs`, the model's outputs [N, D] for the examples of `truth` [N, D], and watches `units` meanwhile.

    `units` are modules by name whose outputs [..., units] a rectifier follows: a unit is dead when none of its values
    is above 0. ValueError for a truth without spread, and for a module that was not called.
    """
    if not (apart := spread(truth)):
        raise ValueError("the truth is the same for every example: nothing can be said of the spread of outputs")
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
    if silent := sorted(units.keys() - alive.keys()):
        raise ValueError(f"{silent[0]} was not called, so that nothing is known of its units")
    dead = {name: 1 - float(alive[name].double().mean()) for name in units}
    return Outputs(spread_ratio=spread(given) / apart, dead_shares=dead)


def require_diverse(found: Outputs, min_spread_ratio: float, max_dead_share: float) -> None:
    """CheckFailed names what has collapsed: outputs with less spread than that share of the truth's, or dead units."""
    faults = []
    if not found.spread_ratio >= min_spread_ratio:  # nor where it is not a number
        faults.append(f"outputs with {found.spread_ratio:.3g} of the truth's spread")
    faults += [
        f"{share:.0%} dead units in {name}" for name, share in found.dead_shares.items() if share > max_dead_share
    ]
    if faults:
        raise CheckFailed(
            "the model says different things of different examples",
            "; ".join(faults),
            f"at least {min_spread_ratio:g} of the spread, at most {max_dead_share:.0%} dead units",
            "A lower learning rate, a warm-up or another start may keep units alive; more steps do not revive them",
        )
