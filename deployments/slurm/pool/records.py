"""The record of a stage's run, `jobs/run.json` in its run directory: who asked for its next job, and how it stands.

One process at a time writes it: the one that serves the root.
"""

import logging
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from deployments.dag.walk import Handle
from deployments.slurm.job.journal import jobs_folder
from deployments.slurm.job.plan import Origin
from deployments.slurm.pool.reconcile import Run, SetState
from storage import durable, generations
from storage.run_directory import RunDirectory, read

LOG = logging.getLogger("ratchet.slurm")
FILE = "run.json"


@dataclass(frozen=True)
class Record:
    """A run: the work of a stage in one generation, over all its jobs. Times are seconds since 1970."""

    id: str
    generation: int
    created_at: float
    state_id: str
    """A new one for each state: what was decided over another state is not set."""
    type: str
    name: str
    message: str = ""
    asked_by: Origin = "person"
    due_at: float = 0.0

    @property
    def over(self) -> bool:
        """True where it has ended."""
        return self.type in ("COMPLETED", "CANCELLED", "FAILED", "CRASHED")

    def in_folder(self, folder: Path) -> Run:
        return Run(self.id, self.state_id, self.type, self.name, self.message, str(folder))


def record_of(run: RunDirectory) -> Record | None:
    """The record of a run directory; None where the engine made none, or another version of it did."""
    try:
        return Record(**read(jobs_folder(run) / FILE))
    except TypeError:
        return None


class Records:
    """The records of the stages that are looked at: what `Pool` and `Look` ask."""

    def __init__(self) -> None:
        self._runs: dict[str, RunDirectory] = {}
        """Run directories, by the ids of their present records."""

    # ---------------------------------------------------------------------------------------------- for looks

    def of(self, run: RunDirectory, run_id: str) -> Record | None:
        """The run directory's record, where it is of this run."""
        record = self.present(run)
        return record if record and record.id == run_id else None

    def made_for(self, handle: Handle) -> Record | None:
        """The run that was made for the stage in its present generation; None where there is none yet."""
        record = self.present(handle.run)
        now = generations.current(handle.run)["generation"]
        return record if record is not None and record.generation == now else None

    def make(self, handle: Handle, person: bool, generation: int) -> Record:
        """The run of a stage in a generation: one, however often this is called."""
        record = self.present(handle.run)
        if record is not None and record.generation == generation:
            return record
        now = time.time()
        by: Origin = "person" if person else "automatic"
        new = Record(uuid4().hex, generation, now, uuid4().hex, "SCHEDULED", "Scheduled", "", by, now)
        return self.write(handle.run, new)

    def present(self, run: RunDirectory) -> Record | None:
        """The record of a run directory, whose jobs are seen to from now on."""
        if (record := record_of(run)) is not None:
            self._runs[record.id] = run
        return record

    # ---------------------------------------------------------------------------------------------- for the pool

    def watched(self, also: Iterable[str] = ()) -> list[Run]:
        """Runs that have a job or are about to have one, or whose job is being cancelled; and those named."""
        types, named = ("PENDING", "RUNNING", "CANCELLING"), {*also}
        return [self._as_run(record) for record in self._all() if record.type in types or record.id in named]

    def waiting(self) -> list[Run]:
        """Runs that are due and have no job yet, first come first."""
        now = time.time()
        due = [record for record in self._all() if record.type == "SCHEDULED" and record.due_at <= now]
        return [self._as_run(record) for record in sorted(due, key=lambda record: (record.due_at, record.created_at))]

    def due_in_seconds(self) -> float:
        """Until a run that was put off is due; infinite where none is."""
        now = time.time()
        later = [record.due_at - now for record in self._all() if record.type == "SCHEDULED" and record.due_at > now]
        return min(later, default=math.inf)

    def open(self, run_id: str) -> Run | None:
        """The run as it is now; None where it has ended."""
        record = self._of(run_id)
        return None if record is None or record.over else self._as_run(record)

    def asked_for_by(self, run_id: str) -> tuple[bool, str]:
        """True where Ratchet itself asked for the next job; and the id of the present state."""
        record = self._of(run_id)
        return (record.asked_by == "automatic", record.state_id) if record else (False, "")

    def set_state(self, wish: SetState) -> bool:
        """Sets the state if the run is still in the one that was read."""
        record = self._of(wish.run.id)
        if record is None or record.state_id != wish.run.state_id:
            return False
        changed: dict[str, Any] = {"type": wish.type, "name": wish.name, "message": wish.message}
        if wish.type == "SCHEDULED":
            changed["due_at"] = time.time() + wish.delay_seconds if wish.delay_seconds else record.due_at
            changed["asked_by"] = record.asked_by if wish.origin == "put off" else wish.origin
        self.write(self._runs[record.id], replace(record, state_id=uuid4().hex, **changed))
        LOG.info("%s: %s. %s", self._runs[record.id].stage, wish.name, wish.message)
        return True

    def write(self, run: RunDirectory, record: Record) -> Record:
        jobs_folder(run).mkdir(parents=True, exist_ok=True)
        durable.write_json(jobs_folder(run) / FILE, vars(record))
        self._runs[record.id] = run
        return record

    def _of(self, run_id: str) -> Record | None:
        run = self._runs.get(run_id)
        record = record_of(run) if run else None
        return record if record and record.id == run_id else None

    def _all(self) -> list[Record]:
        found = ((run_id, self._of(run_id)) for run_id in [*self._runs])
        records = {run_id: record for run_id, record in found if record is not None}
        self._runs = {run_id: self._runs[run_id] for run_id in records}
        return [*records.values()]

    def _as_run(self, record: Record) -> Run:
        return record.in_folder(jobs_folder(self._runs[record.id]))
