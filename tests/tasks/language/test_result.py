"""The training's part of a result: what each budget adds to it, and that it is read as it was written."""

from typing import Any

import pytest

from tasks.language.result import Training
from tasks.language.training import _described
from tasks.training.budget import Budget
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position
from tests.tasks.tiny import ToyConfig, toy_problem

NOT_LEARNING = {"max_ratio": 0.9, "by_step": 4}


class OfLength:
    """All that `_described` asks of the blocks."""

    predicted_tokens = 15


def described(budget: dict[str, Any]) -> Training:
    """What a training of four steps says of itself."""
    typed = Budget.model_validate({"epochs": 1.0, "effective_batch_examples": 16} | budget)
    problem: Problem = toy_problem(ToyConfig())
    problem.trivial = {"unigram": 6.0} if typed.not_learning else {}
    gradients = {"gradient_norm_90_percent_below": 0.5, "gradient_norm_max": 0.6, "gradient_steps_clipped_share": 0.0}
    position = Position(
        step=4, best_step=2, best_value=5.1, epochs=[{"epoch": 1.0, **gradients}], validations=[[2, 5.1], [4, 5.2]]
    )
    return _described(Schedule(typed, 64), problem, position, OfLength())


PLAIN = [
    *("budget", "steps", "epochs", "tokens_trained", "best_step", "best_validation_loss_nats_per_token"),
    *("best_validation_perplexity", "gradients", "gradient_advice", "validations"),
]


@pytest.mark.parametrize(
    ("budget", "after", "added"),
    [
        ({}, "", []),
        ({"ema_decay": 0.9}, "", []),
        ({"patience_validations": 3}, "epochs", ["ended_early_at_step"]),
        ({"not_learning": NOT_LEARNING}, "best_validation_loss_nats_per_token", ["trivial", "ratio_to_trivial"]),
    ],
)
def test_a_training_is_read_as_it_was_written_with_what_its_budget_adds(budget, after, added):
    found = described(budget)
    written = found.as_json()
    place = PLAIN.index(after) + 1 if after else 0
    assert list(written) == [*PLAIN[:place], *added, *PLAIN[place:]]
    assert Training.model_validate(written) == found
    assert written["best_validation_loss_nats_per_token"] == 5.1 and written["tokens_trained"] == 64 * 15
