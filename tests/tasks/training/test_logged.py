"""What a result says of a training is compared with the rows that it wrote, and with its budget."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from storage.errors import CheckFailed
from tasks.training.budget import Budget
from tasks.training.logged import require_as_configured, require_as_logged
from tests.tasks.tiny import ToyConfig, toy_attempt, toy_directory

CONFIG = ToyConfig(
    metrics=["squared_error", "bias"],
    trivial=1.0,
    budget=Budget(
        epochs=50, effective_batch_examples=8, learning_rate=0.3, validations_per_epoch=4, patience_validations=3
    ),
)
Training = dict[str, Any]


def required(root: Path, edit: Callable[[Training], Any] = lambda training: None) -> None:
    run = toy_directory(root, CONFIG)
    training = copy.deepcopy(durable.read_json(run.result_file)["training"])
    edit(training)
    require_as_logged("the toy", run.metrics_file, training, "squared_error")
    require_as_configured("the toy", run.metrics_file, training, CONFIG.budget, CONFIG.examples)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    toy_attempt(folder, CONFIG)
    return folder


def test_a_training_that_patience_ended_is_as_logged_and_as_configured(root):
    required(root)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda t: t["validations"][0].update(squared_error=0.0), "the best validation of the toy is the lowest"),
        (lambda t: t.update(best_step=1), "the best validation of the toy is the lowest"),
        (lambda t: t["validations"][0].update(squared_error=9.0), "validation 1 in the result of the toy is that in"),
        (lambda t: t["validations"][0].update(bias=9.0), "validation 1 in the result of the toy is that in"),
        (lambda t: t["validations"].pop(), "in the result of the toy is that in"),
        (lambda t: t["gradients"][0].update(gradient_steps_clipped_share=0.0), "epoch's gradients 1 in the result"),
        (lambda t: t.update(steps=1), "the steps of the toy are those in"),
        (lambda t: t["budget"].update(learning_rate=0.1), "the toy was trained with the configured budget"),
    ],
)
def test_what_the_rows_or_the_budget_contradict_is_refused(root, edit, said):
    with pytest.raises(CheckFailed, match=f"{said}.*: measured .*, required "):
        required(root, edit)


def test_rows_of_another_rate_are_refused(root):
    run = toy_directory(root, CONFIG)
    training = durable.read_json(run.result_file)["training"]
    training["budget"]["learning_rate"] = 0.2
    other = CONFIG.budget.model_copy(update={"learning_rate": 0.2})
    with pytest.raises(CheckFailed, match=r"the learning rate of the toy at step \d+ in .* is that of its budget"):
        require_as_configured("the toy", run.metrics_file, training, other, CONFIG.examples)
