"""Trivial values beside every metric, and the end of a training that is hardly better than they are."""

import json

import pytest

from deployments.views.curves import trivial_of
from storage import attempts, durable, generations, markers
from storage.errors import BadInput, NotLearning
from storage.rows import rows_of
from tasks.training.budget import Budget, LearningGate
from tasks.training.problem import Problem
from tasks.training.unlearned import unlearned
from tests.tasks.tiny import ToyConfig, toy_attempt, toy_directory, toy_problem, toy_to_the_end
from tests.tasks.training.pulses import ISOTROPIC, PulsesConfig, pulses_attempt, pulses_directory

BUDGET = ToyConfig().budget
LEARNS_LATE = {"max_ratio": 0.9, "by_step": 5}


def gated(trivial: float, **changed) -> ToyConfig:
    """The toy, whose validation loss is about 1 after step 5."""
    fields = {"not_learning": LearningGate(**LEARNS_LATE), **changed}
    return ToyConfig(trivial=trivial, budget=BUDGET.model_copy(update=fields))


# ------------------------------------------------------------------------- raw detector pulses, as seen


def test_raw_pulses_that_teach_nothing_finished_and_a_gate_without_a_margin_lets_them_pass(tmp_path):
    """Seen: a study trained for hours at 87 degrees and ended `finished`. Chance is a few percent below 90 degrees."""

    def ends(normalised: bool, max_ratio: float | None) -> tuple[str, float]:
        gate = LearningGate(max_ratio=max_ratio, by_step=32) if max_ratio else None
        config = PulsesConfig(normalised=normalised, not_learning=gate)
        outcome = pulses_attempt(tmp_path, config)
        rows = pulses_directory(tmp_path, config).metrics_file.read_text().splitlines()
        return outcome.end_state, min(row["angle_rad"] for row in map(json.loads, rows) if "angle_rad" in row)

    end_state, angle = ends(normalised=False, max_ratio=None)
    assert end_state == "finished" and 0.9 * ISOTROPIC < angle < ISOTROPIC
    assert ends(normalised=False, max_ratio=1.0) == ("finished", angle)
    assert ends(normalised=False, max_ratio=0.9)[0] == "not_learning"
    end_state, angle = ends(normalised=True, max_ratio=0.9)
    assert end_state == "finished" and angle < 0.7 * ISOTROPIC


# ------------------------------------------------------------------------------------------ how it ends


def test_it_says_what_was_measured_and_required_and_leaves_no_marker(tmp_path):
    config = gated(trivial=0.01)
    outcome = toy_attempt(tmp_path, config, checkpoint_every_steps=2)
    run = toy_directory(tmp_path, config)
    assert (outcome.end_state, outcome.exit_code) == ("not_learning", 1)
    (row,) = [row for row in map(json.loads, run.metrics_file.read_text().splitlines()) if "validation_loss" in row]
    value = row["validation_loss"]
    assert (row["step"], row["trivial"], row["ratio_to_trivial"]) == (5, {"mean": 0.01}, value / 0.01)
    assert outcome.message == (
        f"by step 5 the lowest validation_loss is {value:.6g}, required at most 0.009, 0.9 of the 0.01 "
        f"that needs no learning (mean). The last validations: {value:.4g} at 5"
    )
    assert outcome.diagnosis.category == "not learning"
    assert outcome.diagnosis.resolution == f"{NotLearning.advice}."
    assert not markers.check(run, {}).present and not run.result_file.exists()
    assert {folder.name for folder in run.checkpoints.iterdir()} == {"2", "4"}
    assert attempts.newest(run.attempts)["end_state"] == "not_learning"


@pytest.mark.parametrize("steps_per_run", [1, 3])
def test_a_training_in_pieces_ends_as_not_learning_too_with_the_same_rows_and_again_when_started_again(
    tmp_path, steps_per_run
):
    config = gated(trivial=0.01)
    toy_attempt(tmp_path / "whole", config)
    outcomes = toy_to_the_end(tmp_path / "pieces", config, max_steps_per_run=steps_per_run)
    assert [outcome.end_state for outcome in outcomes] == ["out_of_time"] * (4 // steps_per_run) + ["not_learning"]
    whole, pieces = (toy_directory(tmp_path / name, config) for name in ("whole", "pieces"))
    assert pieces.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    assert toy_attempt(tmp_path / "pieces", config).message == outcomes[-1].message
    assert pieces.metrics_file.read_bytes() == whole.metrics_file.read_bytes()
    assert generations.current(pieces)["generation"] == 1


def test_a_training_that_learns_is_validated_at_the_gate_s_step_and_goes_on(tmp_path):
    config = gated(trivial=100.0)
    assert toy_attempt(tmp_path, config).end_state == "finished"
    described = durable.read_json(toy_directory(tmp_path, config).result_file)["training"]
    assert described["trivial"] == {"mean": 100.0}
    assert described["ratio_to_trivial"] == described["best_validation_loss"] / 100.0
    validated = durable.read_json(toy_directory(tmp_path, config).result_file)["validations"]
    assert [step for step, _ in validated] == [5, 6, 12]


def test_the_best_validation_by_then_counts_not_the_last(tmp_path):
    """The toy's loss rises again with a rate this high, above what was best."""
    wild = {"learning_rate": 0.3, "validations_per_epoch": 6, "decay": "constant"}
    free = ToyConfig(trivial=1.0, budget=BUDGET.model_copy(update=wild))
    toy_attempt(tmp_path, free)
    losses = [loss for _, loss in durable.read_json(toy_directory(tmp_path, free).result_file)["validations"]]
    step = next(step for step in range(2, 13) if losses[step - 1] > min(losses[:step]))
    gate = LearningGate(max_ratio=1.0, by_step=step)
    config = gated((min(losses[:step]) + losses[step - 1]) / 2, **wild, not_learning=gate)
    assert toy_attempt(tmp_path, config).end_state == "finished"


def test_patience_does_not_let_a_training_finish_before_the_gate(tmp_path):
    still = {"learning_rate": 1e-30, "weight_decay": 0.0, "epochs": 6.0, "patience_validations": 2}
    config = gated(0.01, **still, not_learning=LearningGate(max_ratio=0.9, by_step=30))
    outcomes = toy_to_the_end(tmp_path, config, max_steps_per_run=7)
    assert outcomes[-1].message.startswith("by step 18 ")


# -------------------------------------------------------------------------------------------- bad input


def test_a_gate_without_a_trivial_value_or_beyond_the_last_step_is_refused_before_the_first(tmp_path):
    outcome = toy_attempt(tmp_path, gated(trivial=0.0))
    assert outcome.end_state == "bad_input" and "this training names none" in outcome.message
    late = gated(trivial=1.0, not_learning=LearningGate(max_ratio=0.9, by_step=13))
    outcome = toy_attempt(tmp_path, late)
    assert outcome.end_state == "bad_input" and "by_step is 13, and the last step is 12" in outcome.message
    assert not toy_directory(tmp_path, late).metrics_file.exists()


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_trivial_value_of_which_nothing_is_a_multiple_is_refused(value):
    toy = toy_problem(ToyConfig())
    with pytest.raises(BadInput, match=r"the trivial value of zero is .*above 0"):
        Problem(toy.model, toy.optimizer, toy.batch, toy.losses, toy.evaluate, trivial={"zero": value})


def test_the_gate_is_in_the_fingerprint_only_where_it_is_asked_for():
    assert "not_learning" not in Budget().scientific()
    assert Budget(not_learning=LearningGate(**LEARNS_LATE)).scientific()["not_learning"] == LEARNS_LATE


# ------------------------------------------------------------------------------------- higher is better


def test_of_a_metric_of_which_higher_is_better_the_highest_is_kept_and_compared(tmp_path):
    """The same training as that of the error, step by step: closeness is 1 / (1 + error)."""
    error = ToyConfig(metrics=["squared_error", "closeness"], trivial=1.0)
    close = ToyConfig(metrics=["closeness", "squared_error"], higher=["closeness"], trivial=0.5)
    by_error, by_closeness = (toy_to_the_end(tmp_path, one, max_steps_per_run=4)[-1] for one in (error, close))
    assert (by_error.end_state, by_closeness.end_state) == ("finished", "finished")
    low, high = (durable.read_json(toy_directory(tmp_path, one).result_file)["training"] for one in (error, close))
    rows = rows_of(toy_directory(tmp_path, close).metrics_file)
    validated = [row["closeness"] for row in rows if "closeness" in row]
    assert high["best_closeness"] == max(validated) > min(validated) and high["best_step"] == low["best_step"]
    assert high["ratio_to_trivial"] == high["best_closeness"] / 0.5 and high["higher_is_better"] is True
    assert high["higher"] == ["closeness"] and not {"higher", "higher_is_better"} & low.keys()
    models = [toy_directory(tmp_path, one).path / "model" / "model.safetensors" for one in (error, close)]
    assert models[0].read_bytes() == models[1].read_bytes()
    metrics = toy_directory(tmp_path, close).metrics_file
    (row, *_) = [row for row in map(json.loads, metrics.read_text().splitlines()) if "closeness" in row]
    assert trivial_of(row | {"validation_closeness": row["closeness"]}, "validation_closeness") == {"mean": 0.5}


def test_such_a_training_below_its_trivial_value_is_told_and_ended(tmp_path):
    close = ToyConfig(metrics=["closeness"], higher=["closeness"], trivial=0.5)
    unlearnable = close.model_copy(update={"trivial": 0.99})
    for config, told in ((close, ""), (unlearnable, "1 of 1 training is no better than mean")):
        toy_to_the_end(tmp_path, config)
        said = unlearned([toy_directory(tmp_path, config)])
        assert said.startswith(told) and bool(said) == bool(told)
    outcome = toy_attempt(tmp_path, close.model_copy(update={"trivial": 0.89, "budget": gated(0.89).budget}))
    assert outcome.end_state == "not_learning"
    assert "the highest closeness is 0." in outcome.message and "required at least 0.988889" in outcome.message


def test_names_that_no_evaluation_gives_are_refused(tmp_path):
    outcome = toy_attempt(tmp_path, ToyConfig(metrics=["closeness"], higher=["accuracy"]))
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "are closeness, and Problem.higher names accuracy" in outcome.message
