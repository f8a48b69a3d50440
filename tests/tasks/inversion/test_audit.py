"""inversion-audit: errors come from the weights again, matrix by matrix, and what does not agree is named."""

from pathlib import Path

import pytest

from deployments.dag.walk import Walk
from storage.errors import BadInput
from tasks.findings.audit import AuditResult
from tasks.inversion.audit import audit
from tasks.inversion.stages import AUDITED
from tests.tasks.inversion.tiny import SMOKE, finished, run
from tests.tasks.resealed import asked_again, nothing
from tests.tasks.tiny import stage_run

CELL = "inversion-train (adversarial, seed 1)"


def audited(folder: Path, root: Path, entropy: int = 1, examples: int = 4) -> AuditResult:
    """The audit of the smoke study below `root`."""
    handle = run(root, finished().study, Walk)["inversion-audit"]
    how = handle.config.audit.model_copy(update={"examples": examples})
    config, work = handle.config.model_copy(update={"audit": how}), stage_run(folder)
    work.identity = {"entropy": entropy}
    return audit(work, config, **{role: given.as_input() for role, given in handle.inputs.items()})


@pytest.mark.parametrize("entropy", [1, 2])
def test_errors_on_other_matrices_agree_too(tmp_path: Path, entropy: int) -> None:
    (errors,) = (kind for kind in audited(tmp_path, finished().root, entropy).kinds if kind.kind == "errors")
    assert errors.asked == 4 * 2 * 2 * 4 and errors.of == 8 * 2 * 64
    assert errors.largest_difference < AUDITED["errors"] / 10


def a_torn_row(role: str, path: Path) -> None:
    if role == "none-0":
        file = path / "metrics.jsonl"
        file.write_text(file.read_text() + "{")


def test_a_row_of_metrics_that_is_none_is_named_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"metrics.jsonl, line \d+ is no row of a training: '{'"):
        asked_again("report", SMOKE, tmp_path, nothing, a_torn_row)
