"""Compares a metric with methods without learning, and ends a training that is hardly better."""

from typing import Any

from storage.errors import BadInput, NotLearning
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position


def compared(value: float, trivial: dict[str, float], higher_is_better: bool = False) -> dict[str, Any]:
    """The entries beside a metric: the trivial values and its ratio to the best of these; none without any."""
    if not trivial:
        return {}
    best = (max if higher_is_better else min)(trivial.values())
    said = {"higher_is_better": True} if higher_is_better else {}
    return {"trivial": trivial, "ratio_to_trivial": value / best, **said}


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

    Where higher is better, the best trivial value may be `max_ratio` of the metric. It does so also when the training
    `ends_early` before that step. The loop calls it before the step is saved, so that
    a continuation comes to the same end.
    """
    gate = schedule.budget.not_learning
    if gate is None or not (position.step == gate.by_step or (ends_early and position.step < gate.by_step)):
        return
    assert position.best_value is not None, "this step is validated"
    higher = problem.higher_decides
    name, value = (max if higher else min)(problem.trivial.items(), key=lambda item: item[1])
    required = value / gate.max_ratio if higher else gate.max_ratio * value
    if not (position.best_value >= required if higher else position.best_value <= required):
        raise NotLearning(
            position.step,
            problem.decides,
            position.best_value,
            required,
            f"{required / value:g} of the {value:.6g} that needs no learning ({name})",
            position.validations,
            higher,
        )
