"""Edits of a finished study that contradict themselves, every marker sealed again: each is refused by name."""

from pathlib import Path

import pytest

from storage.errors import BadInput
from tests.tasks.inversion.tiny import SMOKE, finished
from tests.tasks.resealed import (
    AUDIT,
    Change,
    Edit,
    Stages,
    asked_again,
    configured_otherwise,
    nothing,
    refused,
    unchanged,
)


def pilot_failed(stages: Stages) -> None:
    for row in stages["pilot"]["metrics"]:
        row |= {"validation_mse": 99.0} if "validation_mse" in row else {}


def other_descents(stages: Stages) -> None:
    for stage in stages.values():
        for fields in (stage["described"]["configuration"], stage["described"]["scientific"]):
            if "mining" in fields:
                fields["mining"]["descent"] = "corrected"


def one_training_twice(stages: Stages) -> None:
    stages["none-1"] |= {"rows": stages["none-0"]["rows"], "metrics": stages["none-0"]["metrics"]}


def better_than_zero(stages: Stages) -> None:
    """Seen: a scale by the recorded number, below 0, let every value pass, and the study said Yes."""
    for role in ("adversarial-0", "adversarial-1"):
        for row in stages[role]["rows"]:
            row["mse"] = -1.0
        for row in stages[role]["metrics"]:
            row |= {"validation_mse": -1.0} if "validation_mse" in row else {}


def no_rates(stages: Stages) -> None:
    for row in stages["none-0"]["metrics"]:
        row.pop("learning_rate", None)


def one_validation(stages: Stages) -> None:
    stages["none-0"]["metrics"] = [row for row in stages["none-0"]["metrics"] if row.get("step") != 50]


def seed_counted_twice(stages: Stages) -> None:
    """One training stands for two seeds, its errors a little moved."""
    rows = [row | {"mse": 1.003 * row["mse"]} for row in stages["none-0"]["rows"]]
    metrics = [
        row | {"validation_mse": 1.003 * row["validation_mse"]} if "validation_mse" in row else row
        for row in stages["none-0"]["metrics"]
    ]
    stages["none-1"] |= {"rows": rows, "metrics": metrics}


def its_weights_too(role: str, path: Path) -> None:
    if role == "none-1":
        source = finished().path("inversion-train (none, seed 0)") / "model" / "model.safetensors"
        (path / "model" / "model.safetensors").write_bytes(source.read_bytes())


def a_torn_row(role: str, path: Path) -> None:
    if role == "none-0":
        file = path / "metrics.jsonl"
        file.write_text(file.read_text() + "{")


def test_errors_below_zero_are_no_errors(tmp_path: Path) -> None:
    assert "the error of adversarial-0 on matrix" in refused("audit", SMOKE, tmp_path, better_than_zero)


def test_a_row_of_metrics_that_is_none_is_named_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"metrics.jsonl, line \d+ is no row of a training: '{'"):
        asked_again("report", SMOKE, tmp_path, nothing, a_torn_row)


@pytest.mark.parametrize(
    ("edit", "change", "said"),
    [
        *((edit, unchanged, said) for edit, said in AUDIT),
        (pilot_failed, unchanged, "error of the pilot, which must learn: measured 99, required at most"),
        (other_descents, unchanged, "is the one that the stage was given: measured fingerprint"),
        (nothing, configured_otherwise, "is the one that the stage was given: measured fingerprint"),
        (no_rates, unchanged, "the last step of none, seed 0 has a learning rate in"),
        (one_validation, unchanged, "the validations of none, seed 0 in"),
        (seed_counted_twice, its_weights_too, "weights of the trainings: measured those of none, seed 0 and none"),
        (one_training_twice, unchanged, "every cell has a number of its own: measured none, seed 0 and none, seed 1"),
    ],
)
def test_the_report_refuses_what_contradicts_another_file(
    tmp_path: Path, edit: Edit, change: Change, said: str
) -> None:
    assert said in refused("report", SMOKE, tmp_path, edit, change)
