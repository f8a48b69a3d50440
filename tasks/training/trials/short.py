"""A short training of which nothing is kept: no checkpoint, no best weights."""

from __future__ import annotations

from collections.abc import Callable

from tasks.stage.execution import Execution
from tasks.training.loader import micro_batches
from tasks.training.loop import initial_state, matmul_precision, optimizer_step
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule


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
