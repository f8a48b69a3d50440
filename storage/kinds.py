"""Which kind of value each name has in the files of a run directory: anybody may have written other ones there.

What reads such a file would fail wherever the value is used, and with it whatever else was to be shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import Any

NUMBER, MAYBE_NUMBER, MAYBE_TEXT = (int, float), (int, float, NoneType), (str, NoneType)
FAR = 1e15
"""No number of these names is further from 0: it could be no time."""
DIAGNOSIS = dict.fromkeys(("level", "category", "summary", "detail", "resolution"), MAYBE_TEXT)
SECONDS = ("started_at", "ended_at", "cpu_seconds", "start_seconds", "step_seconds", "save_seconds")
KINDS: Mapping[str, Mapping[str, Any]] = {
    "stage.json": dict.fromkeys(("stage", "study", "fingerprint"), str)
    | {"version": int, "configuration": {"cell": MAYBE_TEXT}, "scientific": {}, "inputs": {}},
    "study.json": {"page": str, "study": {}, "over": {}},
    "progress.json": {"step": NUMBER, "total": MAYBE_NUMBER, "unit": str, "note": str, "eta_seconds": MAYBE_NUMBER},
    "attempts": dict.fromkeys(("host", "end_state", "slurm_job_id", "slurm_job_name", "started_by"), str)
    | dict.fromkeys((*SECONDS, "peak_memory_bytes"), NUMBER)
    | {"attempt": int, "began_at": [int], "diagnosis": DIAGNOSIS, "source": {}, "numerics": {}, "versions": {}},
    "jobs": dict.fromkeys(("name", "flow_run", "state_id", "job_id"), str)
    | dict.fromkeys(("number", "cpus", "gpus", "attempts_before"), int)
    | dict.fromkeys(("submitted_at", "ended_at", "memory_gb", "memory_cap_gb", "time_limit_minutes"), NUMBER)
    | {"end": {"follows": str, "message": str, "delay_seconds": NUMBER, "memory_gb": MAYBE_NUMBER, "exclude": [str]}},
}
"""By the name of a file, or of the folder that holds files of one kind, where null stands for what is not known. A name
that is not listed holds anything."""


def of_kind(file: Path, found: Any) -> dict[str, Any]:
    """The JSON object of a file; ValueError where it is none, or where a name has another kind of value."""
    kinds = KINDS.get(file.parent.name) or KINDS.get(file.name, {})
    if not isinstance(found, dict):
        raise ValueError(f"{file} is no JSON object")
    for name, value in found.items():
        unknown = value is None and file.parent.name in KINDS
        if name in kinds and not unknown and not fits(value, kinds[name]):
            raise ValueError(f"{file} was not written by Ratchet: {name} is no {_kind(kinds[name])}")
    return found


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is of a kind: a group whose named values are of theirs, a list of one kind, a type."""
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(fits(value[name], one) for name, one in kind.items() if name in value)
    if isinstance(kind, list):
        return isinstance(value, list) and all(fits(one, kind[0]) for one in value)
    return isinstance(value, kind) and (not isinstance(value, int | float) or abs(value) < FAR)


def _kind(kind: Any) -> str:
    if isinstance(kind, dict | list):
        return "group of names and values" if isinstance(kind, dict) else "list of such values"
    return "text" if kind in (str, MAYBE_TEXT) else "number"
