"""How each stage of a study on SLURM stands, and its start: by its run directory alone.

A stage may start when its inputs are finished, nobody works on it, and no run of it is under way. What is under way is
read from the run directory: its lock, the journal of its jobs, the engine's record of its run.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import SlurmCommands, Unreachable
from deployments.slurm.cluster.diagnosis import ENDS, accounted_end
from deployments.slurm.job.journal import CANCEL_WORDS, Journal, Submission, end_of, jobs_folder
from deployments.slurm.pool.records import Record, Records
from storage import attempts, generations, locks
from storage.errors import Held
from storage.run_directory import RunDirectory
from tasks.stage.outcome import AWAITING_RETRY, BAD_INPUT, CANCELLED, COMPLETED, FAILED, PrefectState, stops

Stand = Literal["finished", "waits", "ready", "under way", "failed", "cancelled"]
UNSEEN_SECONDS = 90.0
"""Time that an NFS client may know nothing of a marker that another host wrote (its own limit is a minute)."""


@dataclass(frozen=True)
class Standing:
    """How a stage stands, for a person and for what waits for it."""

    stand: Stand
    message: str
    bad_input: bool = False
    """True where it failed for what it was given, which a person must correct."""

    @property
    def state(self) -> PrefectState:
        """The state that shows it where the study is followed."""
        if self.stand == "failed":
            return BAD_INPUT if self.bad_input else FAILED
        return {"finished": COMPLETED, "cancelled": CANCELLED}.get(self.stand, AWAITING_RETRY)

    @property
    def line(self) -> str:
        return self.message if self.message.startswith(self.stand) else f"{self.stand}: {self.message}"


Told = Callable[[Handle, Standing], None]
"""Gets a stage and how it stands."""


def nobody(handle: Handle, standing: Standing) -> None:
    """Does nothing: nobody wants to be told."""


@dataclass(frozen=True)
class Standings:
    """How the stages of a walked page stand, in page order."""

    handles: list[Handle] = field(default_factory=list)
    standings: dict[str, Standing] = field(default_factory=dict)
    """By fingerprint."""

    @property
    def under_way(self) -> bool:
        """True where any stage is worked on or queued."""
        return any(standing.stand == "under way" for standing in self.standings.values())

    def standing(self, handle: Handle) -> Standing:
        return self.standings[handle.run.fingerprint]


class Look:
    """Finds how stages stand, and starts those that are ready where it `starts`."""

    def __init__(
        self, records: Records, slurm: SlurmCommands, *, starts: bool = False, person: bool = False, told: Told = nobody
    ) -> None:
        """`person`: a person asks, so what failed or was cancelled is ready; otherwise it stays as it is. `told` gets
        each stage as soon as it is known how it stands."""
        self._records, self._slurm, self._starts = records, slurm, starts
        self._person, self._told, self._found = person, told, Standings()

    def at(self, handles: Iterable[Handle]) -> Standings:
        """How these stages stand, and those that were looked at before."""
        every = [*handles]
        if any(handle.refusal for handle in every):  # what else it waits for would be in vain
            self._starts = False
        for handle in every:
            if not handle.finished:
                handle.check_marker()  # its inputs may have become finished on the way
            self._found.handles.append(handle)
            standing = self._found.standings[handle.run.fingerprint] = self._stand(handle, self._person)
            self._told(handle, standing)
        return self._found

    def _stand(self, handle: Handle, person: bool) -> Standing:
        if handle.finished:
            return Standing("finished", str(handle.run.path))
        if refusal := handle.refusal:
            return Standing("failed", refusal, bad_input=True)
        if handle.waits_for:
            return Standing("waits", f"waits for {', '.join(handle.waits_for)}")
        entries = Journal(jobs_folder(handle.run)).all()
        last = entries[-1] if entries else None
        run = self._records.of(handle.run, last.flow_run) if last else None
        if (run is None or run.over) and (made := self._made_after(handle, entries)):
            run, last = made, None  # whatever its end was, the stage was started again since
        if run is not None and not run.over:
            return under_way(run, last)
        if last is not None and last.live and run is None:
            unknown = f"job {last.job_id}, of a run that is not known here"
            state = self._job_state(last, handle.run)
            if state not in ENDS:
                return Standing("under way", unknown)
            if state == "CANCELLED" and not person:
                return Standing("cancelled", f"{unknown}, was cancelled")
        if _finished_lately(last) and not handle.verdict.present and not person:
            return Standing("under way", f"job {last.job_id} finished it; this host does not see its marker yet")
        if self._starts and (holder := held_by(handle.run)):
            return Standing("under way", holder)
        stopped = _stopped(handle.run, last, run)
        if stopped is not None and not person:
            return stopped
        if not self._starts:
            return Standing("ready", "starting the study starts it")
        return self._start(handle, person, f"started again: {stopped.message}" if stopped else "")

    def _start(self, handle: Handle, person: bool, again: str) -> Standing:
        """A new run of the stage, whose generation is raised if it begins `again`; the one that is there already for
        this generation, where it was."""
        anew = person and not again
        try:
            run = self._begin(handle, person, again)
            while run and run.over and (run.type == "COMPLETED" or anew):
                # the folder was removed since, perhaps more than once
                again = f"started again: its run is {run.name}, and its folder has no marker"
                run = self._begin(handle, person, again)
        except Held as held:
            return Standing("under way", str(held))
        if run is None:
            return Standing("finished", str(handle.run.path))
        if run.over:  # it ended and left nothing on disk
            return Standing("cancelled" if run.type == "CANCELLED" else "failed", f"{run.name}: {run.message}")
        return Standing("under way", "started")

    def _begin(self, handle: Handle, person: bool, again: str) -> Record | None:
        """The run of the stage's generation; None when it is finished by now."""
        digests = {role: parent.verdict.outputs_digest for role, parent in handle.inputs.items()}
        generation = generations.raised_for_dispatch(handle.run, digests, again)
        handle.check_marker()
        return None if handle.finished else self._records.make(handle, person, generation)

    def _made_after(self, handle: Handle, entries: list[Submission]) -> Record | None:
        """The run that was made for the stage after all its jobs so far, and has none yet."""
        run = self._records.made_for(handle)
        since = entries[-1].submitted_at if entries else 0.0
        if run is None or run.id in {entry.flow_run for entry in entries}:
            return None
        return run if run.created_at > since else None

    def _job_state(self, entry: Submission, run: RunDirectory) -> str:
        """SLURM's last word on the job of a submission; empty without an answer, FAILED when nothing is left of it."""
        try:
            jobs = self._slurm.jobs().values()
        except Unreachable:
            return ""
        named = [job for job in jobs if job.name == entry.name]
        if not named and entry.job_id:
            accounted = self._slurm.accounted([entry.job_id]).values()
            named = [job for job in accounted if job.name == entry.name and accounted_end(job)]
        if named:
            return named[0].state
        log = end_of(Journal(jobs_folder(run)).log(entry))
        return "CANCELLED" if CANCEL_WORDS.search(log) else "FAILED"


def held_by(run: RunDirectory) -> str:
    """Names who works on a stage without any flow run that we know of. Takes its lock for a moment."""
    folder = run.path / "locks"
    if locks.holder(folder) is None:
        return ""
    try:  # one on another host can only be watched
        locks.acquire(folder).release()
    except Held as held:
        return str(held)
    return ""


def _finished_lately(last: Submission | None) -> TypeGuard[Submission]:
    if last is None or last.end is None or last.end.follows != "Completed":
        return False
    return time.time() - last.ended_at < UNSEEN_SECONDS


def _stopped(directory: RunDirectory, last: Submission | None, run: Record | None) -> Standing | None:
    """Why the stage does not go on by itself, as far as disk and its run say; None when it may."""
    end = last.end if last else None
    if last and end and end.follows == "Cancelled":
        return Standing("cancelled", end.message)
    if last and end and end.follows == "Failed":
        bad_input = end.diagnosis is not None and end.diagnosis.category == "bad input"
        return Standing("failed", end.message, bad_input)
    if run is not None and run.type == "CANCELLED":
        return Standing("cancelled", run.message or "cancelled")
    unsubmitted = last is None or (end is not None and end.follows == "AwaitingRetry")
    if run is not None and run.type in ("FAILED", "CRASHED") and unsubmitted:  # its next job was refused
        return Standing("failed", run.message or run.name)
    record = attempts.newest(directory.attempts)
    if record and stops(record.get("end_state")):
        summary = (record.get("diagnosis") or {}).get("summary", "")
        return Standing("failed", summary, record["end_state"] == "bad_input")
    return None


def under_way(run: Record, last: Submission | None) -> Standing:
    """How a stage stands whose run has not ended; `last` is its newest job, where it is of this run."""
    name = f"job {last.job_id}" if last and last.live and last.job_id else run.name
    return Standing("under way", run.message or name)
