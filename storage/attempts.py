"""One record for each process's work on a stage, written when it starts and again when it ends."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import re
import resource
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from storage import durable, locks
from storage.run_directory import read

STARTED_BY = "RATCHET_STARTED_BY"
"""Set to `automatic` by whatever starts attempts by itself; everything else was started by a person."""
ATTEMPTS_WITHOUT_PROGRESS = 3
ENDED_BY_A_PERSON = ("interrupted", "cancelled")

SPARE_BYTES = 32 * 1024
"""Kept on the disk while an attempt works, and given back for its last words: a full disk has room for its record."""

DISTRIBUTION = "ratchet"
"""Our own package, as installed: what it asks for is what results can depend on."""


class AttemptRecord:
    """`attempts/NNNN.json`; NNNN is the number of the attempt's lock."""

    def __init__(
        self,
        folder: Path,
        number: int,
        execution: dict[str, Any],
        began_at: list[int],
        own_source: dict[str, str] | None = None,
    ) -> None:
        """`began_at` is how far the stage was when this attempt began (see `without_progress`).

        `own_source` says where its work comes from, where that lies outside our own checkout: `own_page`, the file
        of the study's page, and `own_digest`, that of its sources.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{number:04d}.json"
        self.log_file = folder / f"{number:04d}.log"
        self._cpu_seconds_before = _cpu_seconds()  # several attempts may work in one process, one after the other
        self._spare = folder / f"{durable.TEMPORARY_PREFIX}spare-{number:04d}"
        self._record = {
            "attempt": number,
            **locks.process_identity(),
            "source": source_version() | (own_source or {}),
            "versions": package_versions(),
            "execution": execution,
            "started_at": time.time(),
            "started_by": started_by(),
            "began_at": began_at,
            "ended_at": None,
            "end_state": None,
            "exit_code": None,
            "diagnosis": None,
        }
        durable.write_json(self._file, self._record)
        with suppress(OSError):  # whatever fails on this disk has room for its own words then, or none
            self._spare.write_bytes(os.urandom(SPARE_BYTES))

    def note(self, **facts: Any) -> None:
        """Adds what became known after the start, such as the numerics and the GPU."""
        self._record.update(facts)
        durable.write_json(self._file, self._record)

    def free_spare(self) -> None:
        """Gives back the room that is kept for the last words."""
        self._spare.unlink(missing_ok=True)

    def end(self, end_state: str, exit_code: int, diagnosis: dict[str, str] | None) -> None:
        """How the attempt ended, and what it used of the machine (this process and those it waited for).

        The memory is the most that they had by now, in earlier attempts too: the system keeps no other.
        """
        self.free_spare()
        self.note(
            ended_at=time.time(),
            end_state=end_state,
            exit_code=exit_code,
            diagnosis=diagnosis,
            cpu_seconds=_cpu_seconds() - self._cpu_seconds_before,
            peak_memory_bytes=1024 * max(one.ru_maxrss for one in _used()),
        )


def _used() -> list[resource.struct_rusage]:
    return [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]


def _cpu_seconds() -> float:
    return sum(one.ru_utime + one.ru_stime for one in _used())


def records(folder: Path) -> list[dict[str, Any]]:
    """The attempts' records, oldest first; one that cannot be read, of a process that died while it wrote it, is left
    out."""
    return [record for file in sorted(folder.glob("[0-9]*.json")) if (record := read(file))]


def newest(folder: Path) -> dict[str, Any] | None:
    """The newest attempt's record, or None when there was no attempt or its record cannot be read."""
    files = sorted(folder.glob("[0-9]*.json"))
    return (read(files[-1]) or None) if files else None


def seconds_of(folder: Path) -> float | None:
    """What the attempts took together, as far as they could say; None where none could."""
    ends = [(one.get("started_at"), one.get("ended_at")) for one in records(folder)]
    spans = [ended - started for started, ended in ends if started and ended]
    return sum(spans) if spans else None


def started_by() -> str:
    """`automatic` or `person`: who started this process."""
    return "automatic" if os.environ.get(STARTED_BY) == "automatic" else "person"


def without_progress(folder: Path, now_at: list[int]) -> list[dict[str, Any]]:
    """The newest attempts in a row, newest first, that were started automatically and took the stage no further.

    `now_at` is how far the stage is: numbers of which at least one grows with every progress (the step of the furthest
    checkpoint, the number of record parts). An attempt left no progress when the next one began where it had begun. A
    row ends at an attempt with progress or one that a person started; one that a person ended is passed over.
    """
    row: list[dict[str, Any]] = []
    for record in reversed(records(folder)):  # half a record says nothing about who started what
        began_at = record.get("began_at") or [0] * len(now_at)
        if record.get("started_by") != "automatic" or any(a > b for a, b in zip(now_at, began_at, strict=True)):
            return row
        if record.get("end_state") not in ENDED_BY_A_PERSON:
            row.append(record)
    return row


def package_versions() -> dict[str, str]:
    """Versions of Python and of every package that ours asks for, as installed here."""
    try:
        required = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:  # run from a bare copy of the source
        required = []
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in required if "extra ==" not in line]
    found = {name: version for name in names if (version := version_of(name))}
    return {"python": platform.python_version(), **found}


def version_of(package: str) -> str | None:
    """The installed version of a package; None when it is not there."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


SOURCE_FILE = "source.json"
"""Beside the rooms in a staged copy of the source: the version that it was copied from."""


@cache
def source_version() -> dict[str, str | None]:
    """Commit of our own checkout, and the digest of what was changed in it and not committed."""
    folder = Path(__file__).parent
    if (staged := folder.parent / SOURCE_FILE).is_file():
        return durable.read_json(staged)
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "diff", "HEAD") if commit else None
    return {
        "commit": commit.strip() if commit else None,
        "dirty_digest": hashlib.sha256(changes.encode()).hexdigest() if changes else None,
    }


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
