"""A trial's failure is its result, the same one however often it was stopped."""

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
from tasks.training.trained import metric_rows
from tasks.training.trials.short import trial
from tests.tasks.tiny import SEEN, ToyConfig, toy_attempt, toy_problem

STAGE = Stage("trial", ToyConfig, "tests.tasks.training.trials.test_trial:work")
PLAIN = ToyConfig(trivial=2.0)
HOPELESS = ToyConfig(
    trivial=0.01, budget=PLAIN.budget.model_copy(update={"not_learning": LearningGate(max_ratio=0.9, by_step=8)})
)


def work(run: StageRun, config: ToyConfig) -> dict[str, Any]:
    schedule = Schedule(config.budget, config.examples)
    problem = toy_problem(config)
    end = trial(run, problem, schedule, config.seed, config.execution)
    return end.as_json() | {"validated_again": problem.metrics(problem.model.eval())}


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
    assert (durable.read_json(whole.result_file)["failure"] is not None) == (ended == "numerical_failure")


def validations(root: Path, config: ToyConfig) -> list[float]:
    rows = metric_rows(directory(root, config).metrics_file)
    return [row["validation_loss"] for row in rows if "validation_loss" in row]


@pytest.mark.parametrize(
    ("config", "changes", "dips"),
    [
        (PLAIN, {}, False),
        (PLAIN, {"learning_rate": 0.3, "decay": "constant", "validations_per_epoch": 2}, True),
        (PLAIN, {"ema_decay": 0.7}, False),
        (HOPELESS, {}, False),
        (HOPELESS, {"ema_decay": 0.7}, False),
    ],
)
def test_the_weights_that_a_trial_leaves_are_those_of_its_last_validation(tmp_path, config, changes, dips):
    """Where a trial dips and falls apart later, its best weights would hide it."""
    config = config.model_copy(update={"budget": config.budget.model_copy(update=changes)})
    assert tried(tmp_path, config).end_state == "finished"
    found, curve = durable.read_json(directory(tmp_path, config).result_file), validations(tmp_path, config)
    assert found["failure"] is None and found["validated_again"]["validation_loss"] == curve[-1]
    assert dips == (min(curve) < curve[-1])


def test_a_trial_that_fails_names_step_tensor_and_examples(tmp_path):
    config = poisoned(tmp_path)
    tried(tmp_path, config)
    failure = durable.read_json(directory(tmp_path, config).result_file)["failure"]
    assert (failure["step"], failure["tensor"]) == (5, "the loss") and len(validations(tmp_path, config)) == 1
    assert (failure["examples"], failure["of_examples"]) == ([config.poisoned_loss], 8) and not failure["together"]


def test_a_trial_may_fail_before_anything_was_measured(tmp_path):
    SEEN.clear()
    toy_attempt(tmp_path / "order", PLAIN, max_steps_per_run=1)
    config = PLAIN.model_copy(update={"poisoned_gradient": SEEN[0][0]})
    tried(tmp_path, config)
    failure = durable.read_json(directory(tmp_path, config).result_file)["failure"]
    assert (failure["step"], failure["tensor"]) == (1, "the gradient of outer.weight")
    assert not validations(tmp_path, config)


def test_what_is_no_finding_about_the_training_ends_the_stage(tmp_path):
    late = HOPELESS.model_copy(update={"trivial": 0.0})
    assert tried(tmp_path, late).end_state == "bad_input"
