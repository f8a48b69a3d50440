"""The part of final_results.json that every study has: the audit, and the runs that its numbers come from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from tasks.findings.audit import AuditResult, require_audited
from tasks.findings.provenance import Provenance, provenance, run_directories, run_name
from tasks.stage.result import Result
from tasks.stage.run import StageInput, StageRun


class StudyResults(Result):
    """Every number of a report; a study adds its own.

    `runs` and `provenance` are by the name that the page gives a stage, `numerics_changes` of the stages whose attempts
    ran on different numerics.
    """

    study: str
    audit: AuditResult
    numerics_changes: dict[str, Any] = Field(default_factory=dict)
    runs: dict[str, str]
    provenance: dict[str, Provenance]

    def run_of(self, role: str) -> str:
        """Name of the run directory of a stage, with which a row of its numbers ends."""
        return run_name(self.runs[role])


def of_runs(run: StageRun, inputs: Mapping[str, StageInput], kinds: Iterable[str], tolerance: float) -> dict[str, Any]:
    """The fields of `StudyResults`. CheckFailed unless the audit computed numbers of all `kinds` again."""
    return {
        "study": run.run.study,
        "audit": require_audited(inputs["audit"], kinds, tolerance),
        "numerics_changes": {role: stage.numerics_changes for role, stage in inputs.items() if stage.numerics_changes},
        "runs": run_directories(inputs, run.run.root),
        "provenance": provenance(inputs),
    }
