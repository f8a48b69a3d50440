"""Where the numbers came from: run directories, fingerprints, digests, numerics, commits and versions."""

from __future__ import annotations

from typing import Any

from storage import attempts, durable
from tasks.stage.run import StageInput


def provenance(stages: dict[str, StageInput]) -> dict[str, Any]:
    """Stage -> what its results are a function of, and the digest of its outputs as they were verified."""
    found = {}
    for stage, given in stages.items():
        described = durable.read_json(given.run.stage_file)
        found[stage] = {
            "fingerprint": given.run.fingerprint,
            "stage_version": described["version"],
            "outputs_digest": given.outputs_digest,
            "numerics": described["numerics"],
            "external": described["external"],
        }
    return found


def sources(stages: dict[str, StageInput]) -> dict[str, dict[str, Any]]:
    """Stage -> commit and package versions of the attempt that finished it, as its record says.

    They are facts of an attempt, not of a result: the report shows them, `final_results.json` does not hold them.
    """
    found = {}
    for stage, given in stages.items():
        record = attempts.newest(given.run.attempts) or {}
        found[stage] = {"source": record.get("source") or {}, "versions": record.get("versions") or {}}
    return found
