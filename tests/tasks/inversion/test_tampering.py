"""What a third reviewer edited in a finished study, every marker sealed again: each is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tasks.inversion.tiny import SMOKE
from tests.tasks.resealed import Stages, refused


def audited_nothing(stages: Stages) -> None:
    stages["audit"]["result"]["numbers"] = {}


def differs_too_much(stages: Stages) -> None:
    stages["audit"]["result"]["largest_difference"] = 7.0


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (audited_nothing, "computed numbers of every kind again: measured []"),
        (differs_too_much, "the largest difference of the audit in"),
    ],
)
def test_what_contradicts_another_file(tmp_path: Path, edit: Callable[[Stages], None], said: str) -> None:
    assert said in refused(SMOKE, tmp_path, edit)
