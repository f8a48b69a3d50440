"""How each stage of a study on SLURM stands: by its run directory first, by Prefect second.

A stage may start when its inputs are finished, nobody works on it, and no flow run of it is under way. What is under
way is read from the run directory first (its lock, the journal of its jobs) and from Prefect second, so that a lost
database starts nothing twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeGuard

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import SlurmClient, Unreachable
from deployments.slurm.cluster.diagnosis import ENDS, accounted_end
from deployments.slurm.job import evidence
from deployments.slurm.job.journal import Journal, Submission, jobs_folder
from deployments.slurm.study.known_runs import KnownRuns, is_over
from storage import attempts, generations, locks
from storage.errors import Held
from storage.run_directory import RunDirectory
from tasks.stage.outcome import AWAITING_RETRY, BAD_INPUT, CANCELLED, COMPLETED, FAILED, PrefectState, stops

Stand = Literal["finished", "waits", "ready", "under way", "failed", "cancelled"]
UNSEEN_SECONDS = 90.0
"""For so long an NFS client may know nothing of a marker that another host wrote (its own limit is a minute)."""


@dataclass(frozen=True)
class Standing:
    """How a stage stands, for a person and for what waits for it."""

    stand: Stand
    message: str
    flow_run: str | None = None
    bad_input: bool = False
    """Whether it failed for what it was given, which a person must correct."""

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
Start = Callable[[Handle, KnownRuns, bool, str], Standing]
"""Starts a stage for a person or not, and why again when it stopped before; how it stands then."""


def nobody(handle: Handle, standing: Standing) -> None:
    """Where nobody wants to be told."""


@dataclass(frozen=True)
class Standings:
    """How the stages of a walked page stand, in page order."""

    handles: list[Handle] = field(default_factory=list)
    standings: dict[str, Standing] = field(default_factory=dict)
    """By fingerprint."""

    @property
    def under_way(self) -> bool:
        """Whether any stage is worked on or queued."""
        return any(standing.stand == "under way" for standing in self.standings.values())

    def standing(self, handle: Handle) -> Standing:
        return self.standings[handle.run.fingerprint]


class Look:
    """Finds how stages stand. Starts nothing, but for what `start` does."""

    def __init__(
        self,
        client: SyncPrefectClient,
        slurm: SlurmClient,
        *,
        start: Start | None = None,
        person: bool = False,
        begun: frozenset[str] = frozenset(),
        told: Told = nobody,
    ) -> None:
        """`start` gets each stage that may start, and says how it stands then.

        `person`: a person asks, so what failed or was cancelled is ready; otherwise it stays as it is, and so do the
        stages whose fingerprints are `begun`. `told` gets each stage as soon as it is known how it stands."""
        self._slurm, self._start, self._told = slurm, start, told
        self._person, self._begun = person, begun
        self._runs, self._found = KnownRuns(client), Standings()

    def at(self, handles: Iterable[Handle]) -> Standings:
        """How these stages stand, and those that were looked at before."""
        given = [*handles]
        self._ask_for([handle for handle in given if not handle.finished])
        for handle in given:
            if not handle.finished:
                handle.check_marker()  # what it reads may have become finished on the way
            self._found.handles.append(handle)
            person = self._person and handle.run.fingerprint not in self._begun
            standing = self._found.standings[handle.run.fingerprint] = self._stand(handle, person)
            self._told(handle, standing)
        return self._found

    def _ask_for(self, handles: list[Handle]) -> None:
        """Reads what Prefect knows of these stages."""
        entries = [Journal(jobs_folder(handle.run)).all() for handle in handles]
        keys = [key_of(handle, generations.current(handle.run)["generation"]) for handle in handles]
        self._runs.read([some[-1].flow_run for some in entries if some], keys)

    def _stand(self, handle: Handle, person: bool) -> Standing:
        if handle.finished:
            return Standing("finished", str(handle.run.path))
        if handle.waits_for:
            return Standing("waits", f"waits for {', '.join(handle.waits_for)}")
        entries = Journal(jobs_folder(handle.run)).all()
        last = entries[-1] if entries else None
        run = self._runs.of(last.flow_run) if last else None
        if (run is None or is_over(run)) and (made := self._made_after(handle, entries)):
            run, last = made, None  # whatever its end was, the stage was started again since
        if run is not None and not is_over(run):
            return under_way(run, last)
        if last is not None and last.live and run is None:
            unknown = f"job {last.job_id}, of a flow run that this Prefect server does not know"
            state = self._job_state(last, handle.run)
            if state not in ENDS:
                return Standing("under way", unknown)
            if state == "CANCELLED" and not person:
                return Standing("cancelled", f"{unknown}, was cancelled")
        if _finished_lately(last) and not handle.verdict.present and not person:
            return Standing("under way", f"job {last.job_id} finished it; this host does not see its marker yet")
        if self._start and (holder := held_by(handle.run)):
            return Standing("under way", holder)
        stopped = _stopped(handle.run, last, run)
        if stopped is not None and not person:
            return stopped
        if self._start is None:
            return Standing("ready", "starting the study starts it")
        return self._start(handle, self._runs, person, f"started again: {stopped.message}" if stopped else "")

    def _made_after(self, handle: Handle, entries: list[Submission]) -> FlowRun | None:
        """The flow run that was made for the stage after all its jobs so far, and has none yet."""
        key = key_of(handle, generations.current(handle.run)["generation"])
        run = self._runs.made_with(key)
        since = entries[-1].submitted_at if entries else 0.0
        if run is None or str(run.id) in {one.flow_run for one in entries}:
            return None
        return run if run.created and run.created.timestamp() > since else None

    def _job_state(self, entry: Submission, run: RunDirectory) -> str:
        """SLURM's last word on the job of a submission; empty without an answer, FAILED when nothing is left of it."""
        try:
            jobs = self._slurm.jobs().values()
        except Unreachable:
            return ""
        found = [job for job in jobs if job.name == entry.name]
        if not found and entry.job_id:
            accounted = self._slurm.accounted([entry.job_id]).values()
            found = [job for job in accounted if job.name == entry.name and accounted_end(job)]
        if found:
            return found[0].state
        log = evidence.end_of(Journal(jobs_folder(run)).log(entry))
        return "CANCELLED" if evidence.CANCEL_WORDS.search(log) else "FAILED"


def held_by(run: RunDirectory) -> str:
    """Who works on a stage without any flow run that we know of. Takes its lock for a moment."""
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


def key_of(handle: Handle, generation: int) -> str:
    """Of the flow run of a stage in a generation: Prefect makes one for each key."""
    return f"{handle.run.path.absolute()}:{handle.run.fingerprint}:{generation}"


def _stopped(run: RunDirectory, last: Submission | None, flow_run: FlowRun | None) -> Standing | None:
    """Why the stage does not go on by itself, as far as disk and Prefect say; None when it may."""
    end = last.end if last else None
    if last and end and end.follows == "Cancelled":
        return Standing("cancelled", end.message, last.flow_run)
    if last and end and end.follows == "Failed":
        bad_input = end.diagnosis is not None and end.diagnosis.category == "bad input"
        return Standing("failed", end.message, last.flow_run, bad_input)
    state = flow_run.state if flow_run is not None else None
    if flow_run is not None and state is not None and state.is_cancelled():
        return Standing("cancelled", state.message or "cancelled", str(flow_run.id))
    failed = state is not None and (state.is_failed() or state.is_crashed())
    unsubmitted = last is None or (end is not None and end.follows == "AwaitingRetry")
    if flow_run is not None and state is not None and failed and unsubmitted:  # its next job was refused
        return Standing("failed", state.message or state.name or "", str(flow_run.id))
    record = attempts.newest(run.attempts)
    if record and stops(record.get("end_state")):
        summary = (record.get("diagnosis") or {}).get("summary", "")
        return Standing("failed", summary, None, record["end_state"] == "bad_input")
    return None


def under_way(run: FlowRun, last: Submission | None) -> Standing:
    """How a stage stands whose flow run has not ended; `last` is its newest job, where it is of this run."""
    state = run.state
    name = f"job {last.job_id}" if last and last.live and last.job_id else (state.name or "") if state else ""
    return Standing("under way", (state.message if state and state.message else "") or name, str(run.id))
