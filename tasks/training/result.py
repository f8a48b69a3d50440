"""What a stage's result says of its training, whatever was trained."""

from __future__ import annotations

from typing import Any

from tasks.training.budget import Budget
from tasks.training.gradients import advice
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position
from tasks.training.trivial import compared


def described(schedule: Schedule, problem: Problem, position: Position, name: str = "") -> dict[str, Any]:
    """All of it. `name` is what the result calls the metric that decides, with its unit; empty means as in its rows."""
    return spent(schedule, position) | best(problem, position, name) | course(schedule, problem, position, name)


def spent(schedule: Schedule, position: Position) -> dict[str, Any]:
    """The budget and what was used of it; with patience also the step after which the training ended early, or null."""
    found = {
        "budget": _told(schedule.budget),
        "steps": position.step,
        "epochs": position.step / schedule.steps_per_epoch,
    }
    if schedule.budget.patience_validations is not None:
        early = position.step < schedule.total_steps
        found["ended_early_at_step"] = position.step if early else None
    return found


def best(problem: Problem, position: Position, name: str = "") -> dict[str, Any]:
    """The best step and its metrics, beside the trivial values where the problem has some."""
    assert position.best_step is not None and position.best_loss is not None
    return {
        "best_step": position.best_step,
        f"best_{name or problem.decides}": position.best_loss,
        **{f"best_{further}": value for further, value in _further(position, position.best_step).items()},
        **compared(position.best_loss, problem.trivial),
    }


def course(schedule: Schedule, problem: Problem, position: Position, name: str = "") -> dict[str, Any]:
    """Gradients by epoch, what they say about clipping, and every validation."""
    return {
        "gradients": position.epochs,
        "gradient_advice": advice(position.epochs[-1], schedule.budget.max_gradient_norm),
        "validations": [
            {
                "step": step,
                name or problem.decides: value,
                **_further(position, step),
                **compared(value, problem.trivial),
            }
            for step, value in position.validations
        ],
    }


def _told(budget: Budget) -> dict[str, Any]:
    """The fields of a budget; one that was added later only where it is used, as in the fingerprint.

    But for `ema_decay`, which every result has told, so that results keep their bytes.
    """
    used = {*budget.scientific(), "ema_decay"}
    return {name: value for name, value in budget.model_dump(mode="json").items() if name in used}


def _further(position: Position, step: float) -> dict[str, float]:
    """The metrics of a validation beside the one that decides."""
    rows = (row for row in position.further_metrics if row["step"] == step)
    return {name: value for name, value in next(rows, {}).items() if name != "step"}
