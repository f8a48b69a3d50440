"""The training's part of a result: every budget gives a result that is read, and written again as it was."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.language.training import _described
from tasks.robustness.results import Training
from tasks.training.budget import Budget
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position
from tests.tasks.tiny import ToyConfig, toy_problem

NOT_LEARNING = {"max_ratio": 0.9, "by_step": 4}


class OfLength:
    """All that `_described` asks of the blocks."""

    sequence_length = 16


def described(budget: dict[str, Any]) -> dict[str, Any]:
    """What a training of four steps says of itself."""
    typed = Budget.model_validate({"epochs": 1.0, "effective_batch_examples": 16} | budget)
    problem: Problem = toy_problem(ToyConfig())
    problem.trivial = {"unigram": 6.0} if typed.not_learning else {}
    gradients = {"gradient_norm_90_percent_below": 0.5, "gradient_norm_max": 0.6, "gradient_steps_clipped_share": 0.0}
    position = Position(
        step=4, best_step=2, best_loss=5.1, epochs=[{"epoch": 1.0, **gradients}], validations=[[2, 5.1], [4, 5.2]]
    )
    return _described(Schedule(typed, 64), problem, position, OfLength())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "budget", [{}, {"ema_decay": 0.9}, {"patience_validations": 3}, {"not_learning": NOT_LEARNING}]
)
def test_what_a_training_says_of_itself_is_read_and_written_again_as_it_was(budget: dict[str, Any]):
    found = described(budget)
    written = Training.model_validate(found).as_json()
    assert written == found and list(written) == list(found)
