"""The journal: what was submitted for a run, written before it was submitted.

`jobs/NNNN.json` in the run's folder, beside the script and the log of the same job. An entry is made before sbatch is
called, under a name that no other job has; the job id is added when sbatch printed it, or when the job was found by
its name; its end is added once, when it is decided what follows, and then the entry never changes again. One worker at
a time writes: the one that holds the pool's lock.

Beside it what the jobs left in the run directory: all that remains of those that SLURM has forgotten.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage import durable, locks, reading
from storage.reading import of_kind
from storage.run_directory import RunDirectory
from tasks.stage.outcome import Diagnosis, Follows

MEMORY_WORDS = (b"exceeded memory limit", b"oom-kill", b"oom_kill", b"Out Of Memory")
CANCEL_WORDS = re.compile(rb"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*")
"""slurmstepd's last line after a scancel; after a time limit, a preemption or a dead node it adds DUE TO what."""
LOG_END_BYTES = 8192


@dataclass(frozen=True)
class End:
    """How a job ended and what follows; decided once."""

    follows: Follows
    message: str
    diagnosis: Diagnosis | None = None
    delay_seconds: float = 0.0
    memory_gb: float | None = None
    """Memory that the next job asks for at least, after one that ran out of it."""
    exclude: list[str] = field(default_factory=list)
    """Nodes that the next job must not run on."""
    over_state: str = ""
    """The flow run's state that this end was decided over: a later state is somebody's newer wish."""
    again: bool = False
    """True where a person retried the run before this end was seen: then the run goes on, whatever the end was."""
    before_stage: bool = False
    """True where the job ended before its stage began, for no cause that is known: some in a row stop the run."""

    def as_dict(self) -> dict[str, Any]:
        return vars(self) | {"diagnosis": self.diagnosis.as_dict() if self.diagnosis else None}

    @classmethod
    def read(cls, values: dict[str, Any]) -> End:
        """The end that `as_dict` gave, also an older one with fewer fields. TypeError when it is none."""
        return cls(**values | {"diagnosis": Diagnosis.read(values.get("diagnosis"))})


@dataclass(frozen=True)
class Submission:
    """One job of a flow run."""

    number: int
    name: str
    flow_run: str
    submitted_at: float
    automatic: bool
    """True where Ratchet itself started it, and not a person."""
    memory_gb: float
    memory_cap_gb: float | None = None
    cpus: int = 1
    gpus: int = 0
    time_limit_minutes: int = 0
    attempts_before: int = 0
    """Number of the newest attempt when this was submitted: its own has a higher one."""
    state_id: str = ""
    """The flow run's Pending state that this job was last asked for by; empty when it is not known."""
    job_id: str | None = None
    cancelled: bool = False
    """True where we asked SLURM to end it: a later wish of a person for this run is not about this job."""
    end: End | None = None
    ended_at: float = 0.0
    """When the end was seen, seconds since 1970."""

    @property
    def live(self) -> bool:
        """True while its job may still be queued or running."""
        return self.end is None


class Journal:
    """The submissions kept in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[int, Submission] | None = None

    def all(self) -> list[Submission]:
        """Every entry that can be understood, oldest first. Raises OSError when the disk does not give one: without
        the newest entry a second job would be submitted beside the first."""
        before, entries = self._known or {}, {}
        for number in sorted({number for number, suffix in self._names() if suffix == "json"}):
            known = before.get(number)
            entry = known if known is not None and known.end else self._read(self.folder / f"{number:04d}.json")
            if entry is not None:
                entries[number] = entry
        self._known = entries
        return list(entries.values())

    def of(self, flow_run: str) -> list[Submission]:
        """The entries of one flow run, oldest first, as this object last read or wrote them: for the one who writes."""
        entries = self.all() if self._known is None else self._known.values()
        return [entry for entry in entries if entry.flow_run == flow_run]

    def next_number(self) -> int:
        """The number for a new entry; that of an entry which cannot be read is not given again."""
        return 1 + max((number for number, _ in self._names()), default=0)

    def write(self, entry: Submission) -> Submission:
        """Keeps the entry durably; the same entry as it was given."""
        known, self._known = self._known, None  # only the disk knows what a failed write leaves
        self.folder.mkdir(parents=True, exist_ok=True)
        values = vars(entry) | {"end": entry.end.as_dict() if entry.end else None}
        durable.write_json(self.folder / f"{entry.number:04d}.json", values)
        if known is not None:
            self._known = dict(sorted((known | {entry.number: entry}).items()))
        return entry

    def note_job(self, entry: Submission, job_id: str) -> Submission:
        return self.write(replace(entry, job_id=job_id))

    def note_end(self, entry: Submission, end: End) -> Submission:
        return self.write(replace(entry, end=end, ended_at=time.time()))

    def script(self, entry: Submission) -> Path:
        """The text that was, or is about to be, submitted."""
        return self.folder / f"{entry.number:04d}.sbatch"

    def log(self, entry: Submission) -> Path:
        """File of what the job prints: output and errors."""
        return self.folder / f"{entry.number:04d}.log"

    def _names(self) -> list[tuple[int, str]]:
        """(number, suffix) of all files of jobs."""
        try:
            names = [name.partition(".") for name in os.listdir(self.folder)]
        except FileNotFoundError:
            return []
        return [(int(stem), suffix) for stem, _, suffix in names if stem.isdecimal()]

    @staticmethod
    def _read(file: Path) -> Submission | None:
        try:
            values = of_kind(file, durable.read_json(file))
            end = values.pop("end")
            return Submission(**values, end=End.read(end) if end else None)
        except (FileNotFoundError, ValueError, TypeError, KeyError, AttributeError):
            return None


def jobs_folder(run: RunDirectory) -> Path:
    """Folder of the scripts, the logs and the journal of a stage's jobs."""
    return run.path / "jobs"


def run_of(folder: Path) -> RunDirectory:
    """The run directory of a folder that `jobs_folder` gave. ValueError for one that it cannot have given."""
    fingerprint, stage, study, root = folder.parents[:4]
    return RunDirectory(root, study.name, stage.name, fingerprint.name)


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
        """The newest holder's file by folder of locks, when it was written, and since when it stands so."""

    def lately(self, folder: Path) -> bool:
        """True if the run directory's lock is held and its heartbeat moved within the time after which it is dead."""
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
