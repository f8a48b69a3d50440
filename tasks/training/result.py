"""The training's part of a stage's result, beside methods without learning; one that is hardly better is ended."""

from storage.errors import BadInput, NotLearning
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position


def described(schedule: Schedule, problem: Problem, position: Position) -> dict[str, object]:
    """The steps, and the best one with its metrics; the configuration has the budget, metrics.jsonl all else.

    The trivial values are beside it where the problem has some, and the names of the metrics of which higher is better.
    A budget with patience adds the step after which the training ended early, or null; one with a guard adds from which
    step it went back to which, and the steps that it skipped.
    """
    assert position.best_step is not None and position.best_value is not None
    further = next((row for row in position.further_metrics if row["step"] == position.best_step), {})
    early, guard = position.step < schedule.total_steps, position.guard
    return {
        **({"guard": {"rollbacks": guard.rollbacks, "skipped": guard.skipped}} if guard else {}),
        "steps": position.step,
        **({"ended_early_at_step": position.step if early else None} if schedule.budget.patience_validations else {}),
        "best_step": position.best_step,
        f"best_{problem.decides}": position.best_value,
        **{f"best_{name}": value for name, value in further.items() if name != "step"},
        **compared(position.best_value, problem.trivial, problem.higher_decides),
        **({"higher": [*problem.higher]} if problem.higher else {}),
    }


def compared(value: float, trivial: dict[str, float], higher_is_better: bool = False) -> dict[str, object]:
    """The entries beside a metric: the trivial values and its ratio to the best of these; none without any."""
    if not trivial:
        return {}
    best = (max if higher_is_better else min)(trivial.values())
    direction = {"higher_is_better": True} if higher_is_better else {}
    return {"trivial": trivial, "ratio_to_trivial": value / best, **direction}


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
