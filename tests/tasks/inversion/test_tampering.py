"""What a third reviewer edited in a finished study, every marker sealed again: each is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import durable
from tests.tasks.inversion.tiny import SMOKE
from tests.tasks.resealed import Change, Stages, asked_again, audited_nothing, differs_too_much, nothing, refused


def trainings(stages: Stages) -> Iterator[dict[str, Any]]:
    return (stage for stage in stages.values() if "mining" in stage["result"])


def results(stages: Stages) -> Iterator[dict[str, Any]]:
    return (stage["result"] for stage in trainings(stages))


# ---------------------------------------------------------------------------------- the matrices, the pilot


def trivial_times_ten(stages: Stages) -> None:
    trivial = stages["data"]["result"]["validation"]["trivial"]
    trivial |= {name: 10 * value for name, value in trivial.items()}


def trivial_of_one_training(stages: Stages) -> None:
    next(results(stages))["training"]["trivial"]["predicting zero"] = 9.0


def condition(stages: Stages) -> None:
    stages["data"]["result"]["validation"] |= {"condition": [1.0, 1.0, 1.0]}


def eigenvalue(stages: Stages) -> None:
    stages["data"]["result"]["out_of_distribution"]["smallest_eigenvalue"] = 9.0


def pilot_failed(stages: Stages) -> None:
    found = stages["pilot"]
    found["result"]["validation_mse"] = found["result"]["training"]["best_validation_mse"] = 99.0
    found["result"]["training"]["validations"][-1]["validation_mse"] = 99.0
    for row in found["metrics"]:
        row |= {"validation_mse": 99.0} if "validation_mse" in row else {}


def pilot_told(stages: Stages) -> None:
    stages["pilot"]["result"]["validation_mse"] = 1e-3


# -------------------------------------------------------------------------------------------- the trainings


def below_the_kept(stages: Stages) -> None:
    for found in results(stages):
        found["training"]["validations"][0]["validation_mse"] = 1e-4


def best_validation(stages: Stages) -> None:
    for found in results(stages):
        found["training"]["best_validation_mse"] = 1e-5


def another_validation(stages: Stages) -> None:
    for found in results(stages):
        found["training"]["validations"][0]["validation_mse"] += 1.0


def best_step(stages: Stages) -> None:
    for found in results(stages):
        found["best_step"] = 1


def last_error(stages: Stages) -> None:
    for found in results(stages):
        found["last_mse"] = 50.0


def steps(stages: Stages) -> None:
    for found in results(stages):
        found["training"]["steps"] = found["last_step"] = 10**6


def clipped(stages: Stages) -> None:
    for found in results(stages):
        found["training"]["gradients"][0]["gradient_steps_clipped_share"] = 0.0


def ratio(stages: Stages) -> None:
    for found in results(stages):
        found["ratio_to_trivial"] /= 2


def rate(stages: Stages) -> None:
    for found in results(stages):
        found["training"]["budget"]["learning_rate"] = 7.0


def descents_exchanged(stages: Stages) -> None:
    other = {"as-published": "corrected", "corrected": "as-published"}
    for found in results(stages):
        found["mining"]["descent"] = other[found["mining"]["descent"]]


def descents_exchanged_in_both(stages: Stages) -> None:
    descents_exchanged(stages)
    for stage in trainings(stages):
        for fields in (stage["described"]["configuration"], stage["described"]["scientific"]):
            fields["mining"]["descent"] = stage["result"]["mining"]["descent"]


def descent_difference(stages: Stages) -> None:
    for found in results(stages):
        if found["descent_difference"]:
            found |= {"descent_difference": 0.0, "descent_defect": ""}


def parameters(stages: Stages) -> None:
    for found in results(stages):
        found["parameters"] = 10**9


# ---------------------------------------------------------------------------------------------- the records


def mean_again(stage: dict[str, Any]) -> None:
    kept = [row["mse"] for row in stage["rows"] if row["split"] == "validation"]
    stage["result"]["validation_mse"] = float(np.mean(kept))


def worst_rows_gone(stages: Stages) -> None:
    for stage in trainings(stages):
        worst = sorted((row for row in stage["rows"] if row["split"] == "validation"), key=lambda row: row["mse"])[-3:]
        stage["rows"] = [row for row in stage["rows"] if row not in worst]
        mean_again(stage)


def best_row_repeated(stages: Stages) -> None:
    for stage in trainings(stages):
        best = min((row for row in stage["rows"] if row["split"] == "validation"), key=lambda row: row["mse"])
        stage["rows"] += [dict(best)] * 64
        mean_again(stage)


def rows_of_no_matrix(stages: Stages) -> None:
    for stage in trainings(stages):
        stage["rows"] += [{"split": "validation", "matrix": 1000 + one, "mse": 1e-6} for one in range(200)]
        mean_again(stage)


def records_digest(stages: Stages) -> None:
    for found in results(stages):
        found["records_digest"] = "0" * 64


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (audited_nothing, "computed numbers of every kind again: measured []"),
        (differs_too_much, "the largest difference of the audit in"),
        (trivial_of_one_training, "none, seed 0 was compared with what needs no learning: measured"),
        (pilot_failed, "the pilot has learned: measured 99.0, required at most"),
        (pilot_told, "the error of the pilot is its best: measured 0.001"),
        (below_the_kept, "the best validation of none, seed 0 is the lowest of its validations: measured"),
        (best_validation, "the best validation of none, seed 0 is the lowest of its validations: measured"),
        (another_validation, "validation 1 in the result of none, seed 0 is that in"),
        (best_step, "the best step of none, seed 0 is that of its training: measured 1"),
        (last_error, "the last error of none, seed 0 is that of its training: measured"),
        (steps, "the steps of none, seed 0 are those in"),
        (clipped, "epoch's gradients 1 in the result of none, seed 0 is that in"),
        (ratio, "the ratio of none, seed 0 to the trivial error: measured"),
        (rate, "none, seed 0 was trained with the configured budget: measured"),
        (descents_exchanged, "the kind of negatives of none, seed 0 is that of its training: measured"),
        (descents_exchanged_in_both, "is the one that the stage was given: measured fingerprint"),
        (worst_rows_gone, "the records of none, seed 0 hold each matrix of both splits once: measured 125 rows"),
        (best_row_repeated, "the records of none, seed 0 hold each matrix of both splits once: measured 192 rows"),
        (rows_of_no_matrix, "the records of none, seed 0 hold each matrix of both splits once: measured"),
        (records_digest, "the digest of the records of none, seed 0: measured 000"),
    ],
)
def test_the_report_refuses_what_contradicts_another_file(
    tmp_path: Path, edit: Callable[[Stages], None], said: str
) -> None:
    assert said in refused("report", SMOKE, tmp_path, edit)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (trivial_times_ten, "the error of predicting zero of the matrices of validation: measured"),
        (condition, "the condition number of the matrices of validation: measured 1.0"),
        (eigenvalue, "the smallest eigenvalue of the matrices of out_of_distribution: measured 9.0"),
        (descent_difference, "how much the negatives of adversarial-as-published-0 depend on how a matrix comes"),
        (parameters, "model/ of none-0 has the parameters that its training counted: measured"),
    ],
)
def test_the_audit_refuses_what_matrices_and_weights_do_not_give(
    tmp_path: Path, edit: Callable[[Stages], None], said: str
) -> None:
    assert said in refused("audit", SMOKE, tmp_path, edit)


def same_metrics_told_otherwise(role: str, path: Path) -> None:
    """The result as it is, beside the metrics of another training."""
    if role == "none-0":
        file = path / "metrics.jsonl"
        file.write_text(file.read_text().replace('"gradient_norm_max"', '"gradient_norm"'))


def configured_otherwise(role: str, path: Path) -> None:
    if role == "none-0":
        described = durable.read_json(path / "stage.json")
        described["configuration"]["budget"]["learning_rate"] = 0.5
        durable.write_json(path / "stage.json", described)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (same_metrics_told_otherwise, "epoch's gradients 1 in the result of none, seed 0 is that in"),
        (configured_otherwise, "is the one that the stage was given: measured fingerprint"),
    ],
)
def test_other_files_that_contradict_the_result(tmp_path: Path, change: Change, said: str) -> None:
    assert said in refused("report", SMOKE, tmp_path, nothing, change)


@pytest.mark.parametrize("stage", ["audit", "report"])
def test_what_was_not_edited_is_accepted(tmp_path: Path, stage: str) -> None:
    asked_again(stage, SMOKE, tmp_path, nothing)
