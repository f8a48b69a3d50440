"""Which learning rates a training can take: each is tried for some steps, from one start, with several seeds.

What is asked after the steps is the metric on one fixed probe set: the loss of the moving batches varies more between
batches than a rate changes it. And it is not asked alone: on inputs in the thousands the loss falls for a while at
every rate, with gradients of 10^6 and more, and what follows is a network that learns nothing, or numbers that are not
finite. So a rate is recommended only where every seed gains and no gradient is out of bounds; else none is, and why.

A recommendation holds for the inputs, the network and the batch that it was made with: its stage reads them, and is
another one when they change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import nn

from storage.errors import NumericalFailure
from tasks.stage.execution import Execution
from tasks.training.findings import RateRow, Recommendation, Tried
from tasks.training.loader import micro_batches
from tasks.training.loop import initial_state, matmul_precision, optimizer_step
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule


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

    state = initial_state(problem, schedule)
    size, workers = execution.micro_batch_examples, execution.loader_workers
    try:
        with (
            matmul_precision(problem.model, schedule.budget),
            micro_batches(problem.batch, schedule, problem.order, seed, 0, size, workers) as batches,
        ):
            for _ in range(schedule.total_steps):
                optimizer_step(problem, schedule, state, batches, size, seed, see)
        after = probed(problem)
        if not math.isfinite(after):
            raise NumericalFailure(state.position.step, [], f"the {problem.decides.replace('_', ' ')}")
    except NumericalFailure as error:
        failed = f"{error.tensor} at step {error.step}"
        return Tried(change=None, gradient_norm_max=largest, parameter=parameter, failed=failed)
    return Tried(change=after - before, gradient_norm_max=largest, parameter=parameter)


def rate_row(rate: float, tried: Sequence[Tried]) -> RateRow:
    """The row of a rate, of what was tried with each seed."""
    changes = [one.change for one in tried if one.change is not None]
    worst = max(tried, key=lambda one: one.gradient_norm_max)
    return RateRow(
        rate=rate,
        seeds=len(tried),
        failed=len(tried) - len(changes),
        mean=sum(changes) / len(changes) if changes else None,
        low=min(changes, default=None),
        high=max(changes, default=None),
        gradient_norm_max=worst.gradient_norm_max,
        parameter=worst.parameter,
    )


def recommended(rows: Sequence[RateRow], max_gradient_norm: float, min_gain: float) -> Recommendation:
    """The rate with the largest mean gain, of those with which every seed gained `min_gain` or more.

    Rates with a seed that failed, or with a gradient above `max_gradient_norm`, are none. ValueError for fewer than
    three seeds: the range of two says nothing.
    """
    if few := [row for row in rows if row.seeds < 3]:
        raise ValueError(f"{few[0].seeds} seeds were tried at {few[0].rate:g}, and three are the least")
    faults = {row.rate: _fault(row, max_gradient_norm, min_gain) for row in rows}
    sound = [row for row in rows if not faults[row.rate]]
    if not sound:
        said = "; ".join(f"{rate:g}: {fault}" for rate, fault in faults.items())
        return Recommendation(rate=None, because=f"none of the rates that were tried can be recommended ({said})")
    best = min(sound, key=lambda row: row.mean or 0.0)
    return Recommendation(
        rate=best.rate,
        because=f"of the rates with which every one of {best.seeds} seeds gains {min_gain:g} or more, {best.rate:g} "
        f"gains most on average, {best.mean:+.4g} ({best.low:+.4g} to {best.high:+.4g}), with gradients up to "
        f"{best.gradient_norm_max:.3g}",
    )


def _fault(row: RateRow, max_gradient_norm: float, min_gain: float) -> str:
    if row.failed:
        return f"{row.failed} of {row.seeds} seeds ended in numbers that are not finite"
    if row.gradient_norm_max > max_gradient_norm:
        return f"gradients up to {row.gradient_norm_max:.3g} (in {row.parameter}), more than {max_gradient_norm:g}"
    assert row.high is not None, "no seed failed"
    if row.high > -min_gain:
        return f"not every seed gains {min_gain:g} ({row.low:+.4g} to {row.high:+.4g})"
    return ""


def probed(problem: Problem) -> float:
    """The metric that decides, of the model as it is."""
    problem.model.eval()
    return problem.metrics(problem.model)[problem.decides]


def _largest_gradient(model: nn.Module) -> str:
    norms = {name: p.grad.norm() for name, p in model.named_parameters() if p.grad is not None}
    return max(norms, key=lambda name: float(norms[name]))
