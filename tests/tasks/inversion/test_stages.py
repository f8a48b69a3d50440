"""The stages of the inversion study: nothing is lost, nothing that does not learn goes on, and every number follows."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from storage import durable
from storage.run_directory import RunDirectory
from tasks.inversion import train as train_module
from tasks.inversion import train as training_module
from tasks.inversion.final_results import Cell, FinalResults
from tasks.inversion.matrices import drawn, pairs
from tasks.inversion.stages import MatricesResult, TrainResult
from tasks.stage.attempt import attempt
from tests.tasks.inversion.tiny import finished, run, run_until, smoke
from tests.tasks.tiny import FinishedStudy, what_must_be_equal

MINED = "inversion-train (adversarial, seed 0)"


def results() -> FinalResults:
    return FinalResults.read_file(finished().path("inversion-report") / "final_results.json")


def cell(study: FinishedStudy, label: str) -> Cell:
    return Cell.of(label, study.input(label), study.study.matrices.validation_matrices)


def test_a_training_that_is_broken_off_again_and_again_ends_with_the_same_bytes(tmp_path: Path) -> None:
    handle = finished().handles[MINED]
    copy = RunDirectory(tmp_path, "copy", handle.run.stage, handle.run.fingerprint)
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    execution = handle.config.execution.model_copy(update={"max_steps_per_run": 40})
    config = handle.config.model_copy(update={"execution": execution})
    ends = [attempt(handle.stage, config, copy, given).end_state for _ in range(3)]
    assert ends == ["out_of_time", "out_of_time", "finished"]
    assert what_must_be_equal(copy) == what_must_be_equal(handle.run)


def test_a_pilot_that_is_hardly_better_than_predicting_the_mean_ends_the_study(tmp_path: Path) -> None:
    """The recorded study's pilot was worse than predicting zero, was called successful, and 30 trainings followed."""
    handles = run(tmp_path / "runs", smoke("pilot.max_ratio=0.001"))
    outcome = handles["inversion-pilot"].outcome
    assert outcome is not None and outcome.end_state == "not_learning"
    assert "required at most" in outcome.text and "predicting the mean" in outcome.text
    assert not any(handle.run.path.exists() for label, handle in handles.items() if "train" in label)


def test_a_training_never_sees_a_matrix_that_it_is_judged_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted defect survived all tests: validation on the first matrices of the training row of seed 0."""
    handle = finished().handles[MINED]
    asked = handle.config.matrices
    trained = pairs(drawn(0, "train", np.arange(64), asked.rank, asked.diagonal_in))
    monkeypatch.setattr(training_module, "fixed_pairs", lambda data, split: trained)
    given = {role: source.as_input() for role, source in handle.inputs.items()}
    copy = RunDirectory(tmp_path, "copy", handle.run.stage, handle.run.fingerprint)
    outcome = attempt(handle.stage, handle.config, copy, given)
    assert outcome.end_state == "check_failed" and "no matrix is in both train and validation" in outcome.text


def test_a_cell_that_fails_leaves_the_others_alone_and_only_it_runs_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, root = smoke("arms=[{name: none}, {name: random, strategy: random}]"), tmp_path / "runs"
    problem, failing = train_module.problem, "random"

    def fails(config, mining, *others):
        if mining.strategy == failing and config.seed == 1:
            raise RuntimeError("the node is gone")
        return problem(config, mining, *others)

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "problem", fails)
        first = run(root, study)
    ended = {label: handle.finished for label, handle in first.items() if "train" in label}
    assert [label for label, is_finished in ended.items() if not is_finished] == ["inversion-train (random, seed 1)"]
    assert not first["inversion-report"].finished
    again = run(root, study)
    assert again["inversion-report"].finished
    assert [label for label, handle in again.items() if "train" in label and handle.outcome] == [
        "inversion-train (random, seed 1)"
    ]


def test_the_numbers_that_others_read_are_there() -> None:
    found = durable.read_json(finished().path("inversion-report") / "final_results.json")
    assert found["trivial"]["zero"] > found["trivial"]["mean"] > 0
    assert list(found["arms"]) == ["none", "random", "adversarial", "adversarial-as-published"]
    for name, arm in found["arms"].items():
        assert list(arm["values"]) == ["0", "1"] and arm["mean"] == pytest.approx(np.mean(list(arm["values"].values())))
        assert arm["values"]["1"] == pytest.approx(cell(finished(), f"inversion-train ({name}, seed 1)").trained.best)
    assert {(one["arm"], one["reference"]) for one in found["differences"]} > {("adversarial", "none")}
    for one in found["differences"]:
        assert {"mean", "interval", "p", "percent", "better"} <= one.keys()


def test_both_descents_are_arms_and_only_the_published_one_depends_on_its_batch() -> None:
    arms = results().arms
    assert arms["adversarial"].descent_defect == "" and arms["adversarial"].descent_difference < 1e-9
    assert arms["adversarial-as-published"].descent_defect == ("in batches of 2, in another order, alone, step by step")
    assert arms["none"].descent_difference is None
    (part,) = results().descent_parts
    assert (part.published, part.corrected) == ("adversarial-as-published", "adversarial")
    whole, without = (
        next(one.percent for one in results().differences if (one.arm, one.reference) == (arm, "none"))
        for arm in (part.published, part.corrected)
    )
    assert part.descent == pytest.approx(whole - without)


def test_the_error_of_every_matrix_is_kept_and_the_trivial_ones_are_of_the_same_matrices() -> None:
    handle = finished().handles[MINED]
    table = pq.read_table(handle.run.path / "records.parquet").to_pandas()
    told = TrainResult.read(handle.as_input())
    by_split = table.groupby("split")["mse"]
    assert dict(by_split.size()) == {"validation": 64, "out_of_distribution": 64}
    assert by_split.mean()["validation"] == cell(finished(), MINED).error["validation"]
    assert told.largest_difference < 1e-9
    fixed = MatricesResult.read(finished().input("inversion-matrices"))
    assert fixed.validation.smallest_eigenvalue >= 0.5 * (1 - 1e-9)
    assert fixed.out_of_distribution.condition[1] > fixed.validation.condition[1]


def test_the_best_and_the_last_step_are_told_apart(tmp_path: Path) -> None:
    """With a rate far too high the last step is worse than the best one, whose weights are kept."""
    study = smoke(
        "arms=[{name: none}, {name: random, strategy: random}]",
        "seeds=[0]",
        "budget.validations_per_epoch=10",
        "budget.learning_rate=0.03",
    )
    handles = run_until("inversion-train", tmp_path / "runs", study)
    stage = handles["inversion-train (random, seed 0)"].as_input()
    made = Cell.of("random", stage, study.matrices.validation_matrices)
    points = {step: error for step, error in made.trained.validations}
    assert made.error["validation"] == pytest.approx(min(points.values()), rel=1e-9)
    assert points[made.trained.best_step] == min(points.values()) < points[100] == made.trained.last
    assert made.trained.last_step == 100
