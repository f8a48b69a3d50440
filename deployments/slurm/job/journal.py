"""The journal: what was submitted for a run, written before it was submitted.

`jobs/NNNN.json` in the run's folder, beside the script and the log of the same job. An entry is made before sbatch is
called, under a name that no other job has; the job id is added when sbatch printed it, or when the job was found by
its name; its end is added once, when it is decided what follows, and then the entry never changes again. One worker at
a time writes: the one that holds the pool's lock.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage import durable
from storage.kinds import of_kind
from storage.run_directory import RunDirectory
from tasks.stage.diagnosis import Diagnosis
from tasks.stage.outcome import Follows


@dataclass(frozen=True)
class End:
    """How a job ended and what follows; decided once."""

    follows: Follows
    message: str
    diagnosis: Diagnosis | None = None
    delay_seconds: float = 0.0
    memory_gb: float | None = None
    """What the next job asks for at least, after one that ran out of memory."""
    exclude: list[str] = field(default_factory=list)
    """Nodes that the next job must not run on."""
    over_state: str = ""
    """The flow run's state that this end was decided over: a later state is somebody's newer wish."""
    again: bool = False
    """Whether a person retried the run before this end was seen: then the run goes on, whatever the end was."""
    before_stage: bool = False
    """Whether the job ended before its stage began, for no cause that is known: some in a row stop the run."""

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
    """Whether it was started by Ratchet itself and not by a person."""
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
    """Whether we asked SLURM to end it: a later wish of a person for this run is not about this job."""
    end: End | None = None
    ended_at: float = 0.0
    """When the end was seen, seconds since 1970."""

    @property
    def live(self) -> bool:
        """Whether its job may still be queued or running."""
        return self.end is None


class Journal:
    """The submissions kept in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[int, Submission] | None = None

    def all(self) -> list[Submission]:
        """Every entry that can be understood, oldest first. Raises OSError when the disk does not give one: without
        the newest entry a second job would be submitted beside the first."""
        before, found = self._known or {}, {}
        for number in sorted({number for number, suffix in self._names() if suffix == "json"}):
            known = before.get(number)
            entry = known if known is not None and known.end else self._read(self.folder / f"{number:04d}.json")
            if entry is not None:
                found[number] = entry
        self._known = found
        return list(found.values())

    def of(self, flow_run: str) -> list[Submission]:
        """The entries of one flow run, oldest first, as this object last read or wrote them: for the one who writes."""
        entries = self.all() if self._known is None else self._known.values()
        return [entry for entry in entries if entry.flow_run == flow_run]

    def next_number(self) -> int:
        """The number for a new entry; that of an entry which cannot be read is not given again."""
        return 1 + max((number for number, _ in self._names()), default=0)

    def write(self, entry: Submission) -> Submission:
        """Keeps the entry durably; the same entry as it was given."""
        known, self._known = self._known, None  # what a write leaves that fails, only the disk knows
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
        """What the job prints: output and errors."""
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
    """Where scripts, logs and the journal of a stage's jobs are kept."""
    return run.path / "jobs"


def run_of(folder: Path) -> RunDirectory:
    """The run directory of a folder that `jobs_folder` gave. ValueError for one that it cannot have given."""
    fingerprint, stage, study, root = folder.parents[:4]
    return RunDirectory(root, study.name, stage.name, fingerprint.name)
