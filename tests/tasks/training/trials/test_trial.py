"""A trial's failure is its result, the same one however often it was stopped."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from storage.run_directory import RunDirectory, fingerprint
from tasks.stage.attempt import attempt
from tasks.stage.outcome import Outcome
from tasks.stage.run import Stage, StageRun
from tasks.training.budget import LearningGate
from tasks.training.schedule import Schedule
from tasks.training.state import Position
from tasks.training.trials.trial import _ended, trial
from tests.tasks.tiny import SEEN, ToyConfig, toy_attempt, toy_directory, toy_problem

STAGE = Stage("trial", ToyConfig, "tests.tasks.training.trials.test_trial:work")
PLAIN = ToyConfig(trivial=2.0)
HOPELESS = ToyConfig(
    trivial=0.01,
    budget=PLAIN.budget.model_copy(update={"not_learning": LearningGate(max_ratio=0.9, by_step=8)}),
)


def work(run: StageRun, config: ToyConfig) -> dict[str, Any]:
    schedule = Schedule(config.budget, config.examples)
    return asdict(trial(run, toy_problem(config), schedule, config.seed, config.execution))


def directory(root: Path, config: ToyConfig) -> RunDirectory:
    return RunDirectory(root, "tiny", STAGE.name, fingerprint(STAGE.name, STAGE.version, config.scientific(), {}, {}))


def tried(root: Path, config: ToyConfig, **changed: Any) -> Outcome:
    settings = config.execution.model_copy(update=changed)
    return attempt(STAGE, config.model_copy(update={"execution": settings}), directory(root, config), {})


def poisoned(root: Path) -> ToyConfig:
    """The plain toy, validated after step 3, with an infinite loss in step 5."""
    SEEN.clear()
    toy_attempt(root / "order", PLAIN, max_steps_per_run=5)
    budget = PLAIN.budget.model_copy(update={"validations_per_epoch": 2})
    return PLAIN.model_copy(update={"poisoned_loss": SEEN[-1][0], "budget": budget})


@pytest.mark.parametrize("ended", ["finished", "not_learning", "numerical_failure"])
def test_however_a_trial_ends_its_stage_is_finished_with_the_same_result_in_pieces_too(tmp_path, ended):
    config = {"finished": PLAIN, "not_learning": HOPELESS}.get(ended) or poisoned(tmp_path)
    assert tried(tmp_path / "whole", config).end_state == "finished"
    while (outcome := tried(tmp_path / "pieces", config, max_steps_per_run=2)).exit_code == 75:
        pass
    assert outcome.end_state == "finished"
    whole, pieces = (directory(tmp_path / name, config) for name in ("whole", "pieces"))
    for name in ("result_file", "metrics_file"):
        assert getattr(whole, name).read_bytes() == getattr(pieces, name).read_bytes()
    assert durable.read_json(whole.result_file)["ended"] == ended


def test_a_finished_trial_says_what_the_training_says(tmp_path):
    tried(tmp_path, PLAIN)
    toy_attempt(tmp_path, PLAIN)
    described = durable.read_json(toy_directory(tmp_path, PLAIN).result_file)["training"]
    assert durable.read_json(directory(tmp_path, PLAIN).result_file) == {
        "ended": "finished",
        "step": 12,
        "metric": described["validations"][-1]["validation_loss"],
        "ratio_to_trivial": described["validations"][-1]["validation_loss"] / 2.0,
        "gradient_norm_max": max(epoch["gradient_norm_max"] for epoch in described["gradients"]),
        "validations": [[one["step"], one["validation_loss"]] for one in described["validations"]],
        "tensor": None,
        "module": None,
        "examples": [],
        "of_examples": 0,
        "together": False,
    }


def test_a_trial_that_fails_names_step_tensor_and_examples_and_what_was_measured_before(tmp_path):
    config = poisoned(tmp_path)
    tried(tmp_path, config)
    found = durable.read_json(directory(tmp_path, config).result_file)
    assert (found["step"], found["tensor"]) == (5, "the loss")
    assert (found["examples"], found["of_examples"]) == ([config.poisoned_loss], 8) and not found["together"]
    assert found["metric"] > 0 and found["ratio_to_trivial"] == found["metric"] / 2.0


def test_a_trial_that_does_not_learn_says_by_how_much(tmp_path):
    tried(tmp_path, HOPELESS)
    found = durable.read_json(directory(tmp_path, HOPELESS).result_file)
    assert (found["step"], found["tensor"], found["examples"]) == (8, None, [])
    assert found["ratio_to_trivial"] == found["metric"] / 0.01 > 0.9


def test_a_trial_that_dips_and_comes_apart_is_judged_by_where_it_ends():
    problem, position = toy_problem(PLAIN), Position(validations=[[1, 0.5], [2, 1.9]], best_step=1, best_value=0.5)
    found = _ended("finished", 2, problem, position)
    assert (found.metric, found.ratio_to_trivial) == (1.9, 1.9 / 2.0)


def test_a_trial_may_fail_before_anything_was_measured(tmp_path):
    SEEN.clear()
    toy_attempt(tmp_path / "order", PLAIN, max_steps_per_run=1)
    config = PLAIN.model_copy(update={"poisoned_gradient": SEEN[0][0]})
    tried(tmp_path, config)
    found = durable.read_json(directory(tmp_path, config).result_file)
    assert (found["step"], found["metric"], found["ratio_to_trivial"]) == (1, None, None)
    assert found["tensor"] == "the gradient of outer.weight"


def test_what_is_no_finding_about_the_training_ends_the_stage(tmp_path):
    late = HOPELESS.model_copy(update={"trivial": 0.0})
    assert tried(tmp_path, late).end_state == "bad_input"
