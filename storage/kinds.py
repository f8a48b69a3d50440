"""The kinds of values in the files of a run directory, checked when they are read: anybody may have written there.

Without the check a command would fail wherever it uses the value, and would show nothing else either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

NUMBER, MAYBE_NUMBER, MAYBE_TEXT = (int, float), (int, float, NoneType), (str, NoneType)
FAR = 1e15
"""The largest magnitude of a number: one beyond could be no time."""
DIAGNOSIS = dict.fromkeys(("level", "category", "summary", "detail", "resolution"), MAYBE_TEXT)
SECONDS = ("started_at", "ended_at", "cpu_seconds", "start_seconds", "step_seconds", "save_seconds")
KINDS: Mapping[str, Mapping[str, Any]] = {
    "stage.json": dict.fromkeys(("stage", "study", "fingerprint"), str)
    | {"version": int, "configuration": {"cell": MAYBE_TEXT}, "scientific": {}, "inputs": {}}
    | {"numerics_changes": [{"from_step": int, "after_rollbacks": int, "micro_batch_examples": int, "compile": str}]},
    "study.json": {"page": str, "study": {}, "over": {}},
    "progress.json": {"step": NUMBER, "total": MAYBE_NUMBER, "unit": str, "note": str, "eta_seconds": MAYBE_NUMBER},
    "attempts": dict.fromkeys(("host", "hardware", "end_state", "slurm_job_id", "slurm_job_name", "started_by"), str)
    | dict.fromkeys((*SECONDS, "peak_memory_bytes"), NUMBER)
    | {"attempt": int, "began_at": [int], "diagnosis": DIAGNOSIS, "source": {}, "numerics": {}, "versions": {}},
    "jobs": dict.fromkeys(("name", "flow_run", "state_id", "job_id"), str)
    | dict.fromkeys(("number", "cpus", "gpus", "attempts_before"), int)
    | dict.fromkeys(("submitted_at", "ended_at", "memory_gb", "memory_cap_gb", "time_limit_minutes"), NUMBER)
    | {"end": {"follows": str, "message": str, "delay_seconds": NUMBER, "memory_gb": MAYBE_NUMBER, "exclude": [str]}},
}
"""Kinds by the name of a file, or of a folder of files of one kind, in which any value may be null (unknown). A name
that is not listed may hold anything."""
REQUIRED = {"attempts": "attempt"}
"""What is read of each file of a folder without asking whether it is there."""


def of_kind(file: Path, value: object) -> dict[str, Any]:
    """Returns the JSON object of a file; ValueError where it is none, or where a name has another kind of value."""
    kinds = KINDS.get(file.parent.name) or KINDS.get(file.name, {})
    if not isinstance(value, dict):
        raise ValueError(f"{file} is no JSON object")
    if (name := REQUIRED.get(file.parent.name)) and value.get(name) is None:
        raise ValueError(f"{file} was not written by Ratchet: it says no {name}")
    for name, field in value.items():
        unknown = field is None and file.parent.name in KINDS
        if name in kinds and not unknown and not fits(field, kinds[name]):
            raise ValueError(f"{file} was not written by Ratchet: {name} is no {_kind(kinds[name])}")
    return value


def fits(value: object, kind: Any) -> bool:
    """Checks a value against a kind: a type, a list of one kind, or a group of named kinds."""
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(
            fits(value[name], inner) for name, inner in kind.items() if name in value
        )
    if isinstance(kind, list):
        return isinstance(value, list) and all(fits(inner, kind[0]) for inner in value)
    return isinstance(value, kind) and (not isinstance(value, int | float) or abs(value) < FAR)


def _kind(kind: object) -> str:
    if isinstance(kind, dict | list):
        return "group of names and values" if isinstance(kind, dict) else "list of such values"
    return "text" if kind in (str, MAYBE_TEXT) else "number"
