"""inversion-audit: errors come from the weights again, matrix by matrix, and what does not agree is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deployments.dag.walk import Walk
from storage import durable
from storage.errors import CheckFailed
from storage.records import records_digest
from tasks.findings.audit import AuditResult
from tasks.inversion.audit import audit
from tasks.inversion.stages import AUDIT_TOLERANCE
from tests.tasks.inversion.tiny import finished, run
from tests.tasks.tiny import stage_run

CELL = "inversion-train (adversarial, seed 1)"


def audited(folder: Path, root: Path, seed: int = 1, examples: int = 4) -> AuditResult:
    """The audit of the smoke study below `root`."""
    handle = run(root, finished().study, Walk)["inversion-audit"]
    how = handle.config.audit.model_copy(update={"examples": examples})
    config = handle.config.model_copy(update={"seed": seed, "audit": how})
    return audit(stage_run(folder), config, **{role: given.as_input() for role, given in handle.inputs.items()})


@pytest.mark.parametrize("seed", [1, 2])
def test_errors_on_other_matrices_agree_too(tmp_path: Path, seed: int) -> None:
    found = audited(tmp_path, finished().root, seed)
    assert found.numbers == {"errors": 4 * 2 * 2 * 4} and found.largest_difference < AUDIT_TOLERANCE / 10


def test_the_report_says_what_was_computed_again() -> None:
    said = AuditResult.read(finished().input("inversion-audit")).in_words
    assert said in (finished().path("inversion-report") / "table.md").read_text()


def test_an_error_and_weights_that_are_not_those_of_the_training(tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished().root, tmp_path / "runs", symlinks=True))
    handles = run(root, finished().study, Walk)
    run_, file = handles[CELL].run, handles[CELL].run.path / "records.parquet"
    rows = pq.read_table(file).to_pylist()
    pq.write_table(pa.Table.from_pylist([row | {"mse": row["mse"] * 0.9} for row in rows]), file)
    told = durable.read_json(run_.result_file)
    less = {name: told[name] * 0.9 for name in ("validation_mse", "out_of_distribution_mse")}
    digest = records_digest(file, ("split", "matrix"))
    durable.write_json(run_.result_file, told | less | {"records_digest": digest})
    said = r"the error of adversarial-1 on matrix \d+ of validation is what the audit computes: measured"
    with pytest.raises(CheckFailed, match=said):
        audited(tmp_path / "1", root)
    other = handles["inversion-train (none, seed 1)"].run.path / "model" / "model.safetensors"
    shutil.copyfile(other, handles[CELL].run.path / "model" / "model.safetensors")
    with pytest.raises(CheckFailed, match="model/ of adversarial-1 holds the weights that its training left"):
        audited(tmp_path / "2", root)
