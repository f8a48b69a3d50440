"""What the jobs of a stage left in its run directory: all that remains of those that SLURM has forgotten."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from deployments.slurm.job.journal import Submission
from storage import durable, locks, reading
from storage.kinds import of_kind

MEMORY_WORDS = (b"exceeded memory limit", b"oom-kill", b"oom_kill", b"Out Of Memory")
CANCEL_WORDS = re.compile(rb"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*")
"""slurmstepd's last line after a scancel; after a time limit, a preemption or a dead node it adds DUE TO what."""
LOG_END_BYTES = 8192


def attempt_of(run_directory: Path, submission: Submission, ended: bool = False) -> dict[str, Any] | None:
    """The record of the attempt that this submission's job made, if it made one.

    `ended`: the record decides what follows, so no cached listing of its folder, or of the one above, is believed.
    Raises OSError when the disk cannot be read.
    """
    if ended:
        for folder in (run_directory, run_directory / "attempts", run_directory / "jobs"):
            durable.refresh(folder)
    for number in reversed(_attempt_numbers(run_directory)):
        if number <= submission.attempts_before:
            return None
        try:
            file = run_directory / "attempts" / f"{number:04d}.json"
            record = of_kind(file, durable.read_json(file))
        except (FileNotFoundError, ValueError):
            continue
        if record.get("slurm_job_name") == submission.name:
            return record
    return None


def _attempt_numbers(run_directory: Path) -> list[int]:
    try:
        names = [name.partition(".") for name in os.listdir(run_directory / "attempts")]
    except FileNotFoundError:
        return []
    return sorted(int(stem) for stem, _, suffix in names if stem.isdecimal() and suffix == "json")


def newest_attempt(run_directory: Path) -> int:
    return max(_attempt_numbers(run_directory), default=0)


def end_of(log: Path) -> bytes:
    """The last lines of a job's log; empty when it has none."""
    try:
        return reading.end_of(log, LOG_END_BYTES)
    except (OSError, ValueError):
        return b""


class Heartbeats:
    """Which run directories somebody works in, by the clock of the process that observes them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[Path, tuple[Path, float, float]] = {}
        """By folder of locks: the newest holder's file, when it was written, and since when it stands so."""

    def lately(self, folder: Path) -> bool:
        """Whether the run directory's lock is held and its heartbeat moved within the time after which it is dead."""
        number = locks.highest(folder)
        alive = folder / f"{number}.alive"
        if not number or (folder / f"{number}.released").exists():
            return False
        try:
            beat = alive.stat().st_mtime
        except OSError:
            return False
        now = self._clock()
        whose, last, since = self._seen.get(folder, (alive, 0.0, now))
        if (whose, last) != (alive, beat):
            since = now
        self._seen[folder] = (alive, beat, since)
        return now - since <= locks.DEAD_AFTER_SECONDS

    def forget(self, folder: Path) -> None:
        self._seen.pop(folder, None)
