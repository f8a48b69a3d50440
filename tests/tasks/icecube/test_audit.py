"""icecube-audit: angles come from the files again, by another path, and what does not agree is named."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from safetensors.torch import load_file, save_file

from deployments.dag.walk import Walk
from storage import durable
from storage.errors import CheckFailed
from tasks.findings.audit import AuditResult
from tasks.icecube.audit import audit
from tasks.icecube.stages import AUDIT_TOLERANCE
from tests.tasks.icecube.tiny import finished, run
from tests.tasks.tiny import stage_run


def audited(folder: Path, root: Path, entropy: int = 1) -> AuditResult:
    """The audit of the smoke study below `root`, of as many events as it has."""
    handle = run(root, finished().study, Walk)["icecube-audit"]
    config = handle.config.model_copy(update={"audit": handle.config.audit.model_copy(update={"examples": 5})})
    work = stage_run(folder)
    work.identity = {"entropy": entropy}
    return audit(work, config, **{role: given.as_input() for role, given in handle.inputs.items()})


@pytest.fixture
def edited(tmp_path: Path) -> Callable[[Callable[[Path], None]], Path]:
    """The root of a copy in which one function has changed the run directory of the training."""

    def copy(change: Callable[[Path], None]) -> Path:
        root = Path(shutil.copytree(finished().root, tmp_path / "runs", symlinks=True))
        change(run(root, finished().study, Walk)["icecube-train"].run.path)
        return root

    return copy


@pytest.mark.parametrize("entropy", [1, 2, 3])
def test_angles_of_other_events_agree_too(tmp_path: Path, entropy: int) -> None:
    found = audited(tmp_path, finished().root, entropy)
    assert found.numbers == {"angles": 5, "trivial angle": 1} and found.worst.largest_difference < AUDIT_TOLERANCE / 10


def test_the_report_says_what_was_computed_again() -> None:
    said = AuditResult.read(finished().input("icecube-audit")).in_words
    report = finished().path("icecube-report")
    assert said in (report / "table.md").read_text() and "Audited: 3 recorded numbers" in said


def test_an_angle_that_the_network_does_not_give(
    tmp_path: Path, edited: Callable[[Callable[[Path], None]], Path]
) -> None:
    def better(path: Path) -> None:
        rows = pq.read_table(path / "records.parquet").to_pylist()
        for row in rows:
            row["angle_degrees"] *= 0.9
        pq.write_table(pa.Table.from_pylist(rows), path / "records.parquet")

    with pytest.raises(
        CheckFailed, match=r"the angle of event \d+ is what the audit computes: measured .* in the records"
    ):
        audited(tmp_path, edited(better))


@pytest.mark.parametrize("told", [False, True])
def test_weights_that_the_training_did_not_leave(
    tmp_path: Path, edited: Callable[[Callable[[Path], None]], Path], told: bool
) -> None:
    def negated(path: Path) -> None:
        from tasks.training.weights import weights_digest

        file = path / "model" / "model.safetensors"
        save_file({name: -tensor for name, tensor in load_file(file).items()}, file)
        if told:
            result = durable.read_json(path / "result.json")
            durable.write_json(path / "result.json", result | {"weights_digest": weights_digest(path / "model")})

    said = "the angle of event" if told else "holds the weights that its training left"
    with pytest.raises(CheckFailed, match=said):
        audited(tmp_path, edited(negated))
