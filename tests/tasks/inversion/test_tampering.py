"""Edits of a finished study that contradict themselves, every marker sealed again: each is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.inversion.tiny import SMOKE
from tests.tasks.resealed import AUDIT, Change, Edit, Stages, configured_otherwise, nothing, refused, unchanged


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


@pytest.mark.parametrize(
    ("edit", "change", "said"),
    [
        *((edit, unchanged, said) for edit, said in AUDIT),
        (pilot_failed, unchanged, "error of the pilot, which must learn: measured 99, required at most"),
        (other_descents, unchanged, "is the one that the stage was given: measured fingerprint"),
        (nothing, configured_otherwise, "is the one that the stage was given: measured fingerprint"),
        (one_training_twice, unchanged, "every cell has a number of its own: measured none, seed 0 and none, seed 1"),
    ],
)
def test_the_report_refuses_what_contradicts_another_file(
    tmp_path: Path, edit: Edit, change: Change, said: str
) -> None:
    assert said in refused("report", SMOKE, tmp_path, edit, change)
