"""What a third reviewer edited in a finished study, every marker sealed again: each is refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tasks.inversion.tiny import SMOKE
from tests.tasks.resealed import (
    AUDIT,
    Change,
    Edit,
    Stages,
    asked_again,
    configured_otherwise,
    edited,
    nothing,
    refused,
)

ARMS = "*-[01]"
"""Every training, and nothing else."""


def trainings(stages: Stages) -> Iterator[dict[str, Any]]:
    return (stage for stage in stages.values() if "mining" in stage["result"])


def pilot_failed(stages: Stages) -> None:
    edited("pilot", {"validation_mse": 99.0, "training.best_validation_mse": 99.0})(stages)
    edited("pilot", {"training.validations.-1": lambda last: last | {"validation_mse": 99.0}})(stages)
    for row in stages["pilot"]["metrics"]:
        row |= {"validation_mse": 99.0} if "validation_mse" in row else {}


def other_descent(mining: dict[str, Any]) -> dict[str, Any]:
    return mining | {"descent": {"as-published": "corrected", "corrected": "as-published"}[mining["descent"]]}


def descents_exchanged_in_both(stages: Stages) -> None:
    edited(ARMS, {"mining": other_descent})(stages)
    for stage in trainings(stages):
        for fields in (stage["described"]["configuration"], stage["described"]["scientific"]):
            fields["mining"]["descent"] = stage["result"]["mining"]["descent"]


def descent_difference(stages: Stages) -> None:
    for stage in trainings(stages):
        if stage["result"]["descent_difference"]:
            stage["result"] |= {"descent_difference": 0.0, "descent_defect": ""}


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


LOWEST = "the best validation of none, seed 0 is the lowest of its validations: measured"
ONCE = "the records of none, seed 0 hold each matrix of both splits once: measured"
REFUSED: list[tuple[Edit, str]] = [
    *AUDIT,
    (
        edited("none-0", {"training.trivial.predicting zero": 9.0}),
        "none, seed 0 was compared with what needs no learning: measured",
    ),
    (pilot_failed, "the pilot has learned: measured 99.0, required at most"),
    (edited("pilot", {"validation_mse": 1e-3}), "the error of the pilot is its best: measured 0.001"),
    (edited(ARMS, {"training.validations.0.validation_mse": 1e-4}), LOWEST),
    (edited(ARMS, {"training.best_validation_mse": 1e-5}), LOWEST),
    (
        edited(ARMS, {"training.validations.0.validation_mse": lambda error: error + 1.0}),
        "validation 1 in the result of none, seed 0 is that in",
    ),
    (edited(ARMS, {"best_step": 1}), "the best step of none, seed 0 is that of its training: measured 1"),
    (edited(ARMS, {"last_mse": 50.0}), "the last error of none, seed 0 is that of its training: measured"),
    (edited(ARMS, {"training.steps": 10**6, "last_step": 10**6}), "the steps of none, seed 0 are those in"),
    (
        edited(ARMS, {"training.gradients.0.gradient_steps_clipped_share": 0.0}),
        "epoch's gradients 1 in the result of none, seed 0 is that in",
    ),
    (
        edited(ARMS, {"ratio_to_trivial": lambda ratio: ratio / 2}),
        "the ratio of none, seed 0 to the trivial error: measured",
    ),
    (
        edited(ARMS, {"training.budget.learning_rate": 7.0}),
        "none, seed 0 was trained with the configured budget: measured",
    ),
    (
        edited(ARMS, {"mining": other_descent}),
        "the kind of negatives of none, seed 0 is that of its training: measured",
    ),
    (descents_exchanged_in_both, "is the one that the stage was given: measured fingerprint"),
    (worst_rows_gone, f"{ONCE} 125 rows"),
    (best_row_repeated, f"{ONCE} 192 rows"),
    (rows_of_no_matrix, ONCE),
    (edited(ARMS, {"records_digest": "0" * 64}), "the digest of the records of none, seed 0: measured 000"),
]


@pytest.mark.parametrize(("edit", "said"), REFUSED)
def test_the_report_refuses_what_contradicts_another_file(tmp_path: Path, edit: Edit, said: str) -> None:
    assert said in refused("report", SMOKE, tmp_path, edit)


def times_ten(trivial: dict[str, float]) -> dict[str, float]:
    return {name: 10 * value for name, value in trivial.items()}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (
            edited("data", {"validation.trivial": times_ten}),
            "the error of predicting zero of the matrices of validation: measured",
        ),
        (
            edited("data", {"validation.condition": [1.0, 1.0, 1.0]}),
            "the condition number of the matrices of validation: measured 1.0",
        ),
        (
            edited("data", {"out_of_distribution.smallest_eigenvalue": 9.0}),
            "the smallest eigenvalue of the matrices of out_of_distribution: measured 9.0",
        ),
        (descent_difference, "how much the negatives of adversarial-as-published-0 depend on how a matrix comes"),
        (
            edited(ARMS, {"parameters": 10**9}),
            "model/ of none-0 has the parameters that its training counted: measured",
        ),
    ],
)
def test_the_audit_refuses_what_matrices_and_weights_do_not_give(tmp_path: Path, edit: Edit, said: str) -> None:
    assert said in refused("audit", SMOKE, tmp_path, edit)


def metrics_of_another_training(role: str, path: Path) -> None:
    if role == "none-0":
        file = path / "metrics.jsonl"
        file.write_text(file.read_text().replace('"gradient_norm_max"', '"gradient_norm"'))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (metrics_of_another_training, "epoch's gradients 1 in the result of none, seed 0 is that in"),
        (configured_otherwise, "is the one that the stage was given: measured fingerprint"),
    ],
)
def test_other_files_that_contradict_the_result(tmp_path: Path, change: Change, said: str) -> None:
    assert said in refused("report", SMOKE, tmp_path, nothing, change)


@pytest.mark.parametrize("stage", ["audit", "report"])
def test_what_was_not_edited_is_accepted(tmp_path: Path, stage: str) -> None:
    asked_again(stage, SMOKE, tmp_path, nothing)
