"""Compares a metric with methods without learning, and ends a training that is hardly better."""

from __future__ import annotations

from typing import Any

from storage.errors import BadInput, NotLearning
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position


def compared(value: float, trivial: dict[str, float]) -> dict[str, Any]:
    """The entries beside a metric: the trivial values and its ratio to the lowest; none without trivial values."""
    return {"trivial": trivial, "ratio_to_trivial": value / min(trivial.values())} if trivial else {}


def require_usable_gate(schedule: Schedule, problem: Problem) -> None:
    """Raises BadInput, before the first step, where the `not_learning` gate of the budget could never decide."""
    gate = schedule.budget.not_learning
    if gate is None:
        return
    if not problem.trivial:
        raise BadInput(
            "budget.not_learning compares with a method without learning, and this training names none: leave it out, "
            "or give Problem.trivial"
        )
    if gate.by_step > schedule.total_steps:
        raise BadInput(
            f"budget.not_learning.by_step is {gate.by_step}, and the last step is {schedule.total_steps}: name one "
            "that the training reaches"
        )


def require_learning(schedule: Schedule, problem: Problem, position: Position, ends_early: bool) -> None:
    """Raises NotLearning when the best so far is too near to the trivial values at the step of the gate.

    It does so also when the training `ends_early` before that step. The loop calls it before the step is saved, so that
    a continuation comes to the same end.
    """
    gate = schedule.budget.not_learning
    if gate is None or not (position.step == gate.by_step or (ends_early and position.step < gate.by_step)):
        return
    assert position.best_value is not None, "this step is validated"
    name, value = min(problem.trivial.items(), key=lambda item: item[1])
    if not position.best_value <= gate.max_ratio * value:
        raise NotLearning(
            position.step,
            problem.decides,
            position.best_value,
            gate.max_ratio * value,
            f"{gate.max_ratio:g} of the {value:.6g} that needs no learning ({name})",
            position.validations,
        )
