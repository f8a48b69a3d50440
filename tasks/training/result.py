"""The training's part of a stage's result, whatever was trained."""

from typing import Any

from tasks.training.budget import Budget
from tasks.training.gradients import advice
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position
from tasks.training.trivial import compared


def described(schedule: Schedule, problem: Problem, position: Position) -> dict[str, Any]:
    """The budget and its use, the best step and its metrics, gradients by epoch, and every validation.

    The trivial values are beside it where the problem has some, and the names of the metrics of which higher is better.
    A budget with patience adds the step after which the training ended early, or null; one with a guard adds from which
    step it went back to which, and the steps that it skipped.
    """
    assert position.best_step is not None and position.best_value is not None
    name, ended_early, decided = problem.decides, {}, problem.higher_decides
    if schedule.budget.patience_validations is not None:
        early = position.step < schedule.total_steps
        ended_early = {"ended_early_at_step": position.step if early else None}
    guarded = {}
    if position.guard is not None:
        guarded = {"guard": {"rollbacks": position.guard.rollbacks, "skipped": position.guard.skipped}}
    return {
        "budget": _fields_of(schedule.budget),
        **guarded,
        "steps": position.step,
        "epochs": position.step / schedule.steps_per_epoch,
        **ended_early,
        "best_step": position.best_step,
        f"best_{name}": position.best_value,
        **{f"best_{further}": value for further, value in _further(position, position.best_step).items()},
        **compared(position.best_value, problem.trivial, decided),
        **({"higher": [*problem.higher]} if problem.higher else {}),
        "gradients": position.epochs,
        "gradient_advice": advice(position.epochs[-1], schedule.budget.max_gradient_norm),
        "validations": [
            {"step": step, name: value, **_further(position, step), **compared(value, problem.trivial, decided)}
            for step, value in position.validations
        ],
    }


def _fields_of(budget: Budget) -> dict[str, Any]:
    """The fields of a budget; one that was added later only where it is used, as in the fingerprint.

    `ema_decay` is always there: every result has had it, and results keep their bytes.
    """
    used = {*budget.scientific(), "ema_decay"}
    return {name: value for name, value in budget.model_dump(mode="json").items() if name in used}


def _further(position: Position, step: float) -> dict[str, float]:
    """The metrics of a validation beside the one that decides."""
    rows = (row for row in position.further_metrics if row["step"] == step)
    return {name: value for name, value in next(rows, {}).items() if name != "step"}
