"""Starts what is ready as flow runs of the pool `gpu`, each at most once; never waits.

A stage is started when its inputs are finished, nobody works on it, and no flow run of it is under way. What is under
way is read from the run directory first (its lock, the journal of its jobs) and from Prefect second, so that a lost
database starts nothing twice.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeGuard
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterIdempotencyKey
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from deployments.slurm.cluster.client import SlurmClient, Unreachable
from deployments.slurm.cluster.diagnosis import ENDS
from deployments.slurm.cluster.site import Site
from deployments.slurm.job import evidence
from deployments.slurm.job.journal import Journal, Submission, jobs_folder
from deployments.slurm.job.origin import marked
from deployments.slurm.job.variables import job_variables, stage_parameters
from deployments.walk import Handle, Walk
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


class Advance:
    """Starts what is ready of a walked page. `standings` are those of `handles`, in page order."""

    def __init__(
        self,
        walk: Walk,
        site: Site,
        study_file: Path,
        source: Path,
        client: SyncPrefectClient,
        slurm: SlurmClient,
        person: bool = False,
    ) -> None:
        """`person`: a person asks, so what failed or was cancelled begins again; otherwise it stays as it is."""
        self.handles = walk.handles
        self._site, self._file, self._source, self._client = site, study_file, source, client
        self._slurm, self._person = slurm, person
        self.standings: dict[str, Standing] = {}
        for handle in self.handles:
            if not handle.finished:
                handle.check_marker()  # what it reads may turn out to be finished on the way
            self.standings[handle.run.fingerprint] = self._stand(handle)

    def standing(self, handle: Handle) -> Standing:
        return self.standings[handle.run.fingerprint]

    def _stand(self, handle: Handle) -> Standing:
        if handle.finished:
            return Standing("finished", str(handle.run.path))
        if handle.waits_for:
            return Standing("waits", f"waits for {', '.join(handle.waits_for)}")
        entries = Journal(jobs_folder(handle.run)).all()
        last = entries[-1] if entries else None
        run = self._flow_run(last.flow_run) if last else None
        if (run is None or _is_over(run)) and (made := self._made_after(handle, entries)):
            run, last = made, None  # whatever its end was, the stage was started again since
        if run is not None and not _is_over(run):
            return _under_way(run, last)
        if last is not None and last.live and run is None:
            told = f"job {last.job_id}, of a flow run that this Prefect server does not know"
            state = self._job_state(last, handle.run)
            if state not in ENDS:
                return Standing("under way", told)
            if state == "CANCELLED" and not self._person:
                return Standing("cancelled", f"{told}, was cancelled")
        if _finished_lately(last) and not handle.verdict.present and not self._person:
            return Standing("under way", f"job {last.job_id} finished it; this host does not see its marker yet")
        if holder := self._held_by(handle.run):
            return Standing("under way", holder)
        stopped = _stopped(handle.run, last, run)
        if stopped is None or self._person:
            return self._start(handle, f"started again: {stopped.message}" if stopped else "")
        return stopped

    def _made_after(self, handle: Handle, entries: list[Submission]) -> FlowRun | None:
        """The flow run that was made for the stage after all its jobs so far, and has none yet."""
        key = _key(handle, generations.current(handle.run)["generation"])
        asked = FlowRunFilter(idempotency_key=FlowRunFilterIdempotencyKey(any_=[key]))
        found = self._client.read_flow_runs(flow_run_filter=asked)
        since = entries[-1].submitted_at if entries else 0.0
        for run in found:
            if run.created and run.created.timestamp() > since and str(run.id) not in {one.flow_run for one in entries}:
                return run
        return None

    def _start(self, handle: Handle, again: str) -> Standing:
        """A new flow run of the stage; the one that was made already for this generation, when it was."""
        anew = self._person and not again
        try:
            run = self._begin(handle, again)
            while run and run.state is not None and run.state.is_final() and (run.state.is_completed() or anew):
                # the folder was removed since, perhaps more than once
                again = f"started again: its flow run is {run.state.name}, and its folder has no marker"
                run = self._begin(handle, again)
        except Held as held:
            return Standing("under way", str(held))
        if run is None:
            return Standing("finished", str(handle.run.path))
        if run.state is not None and run.state.is_final():  # it ended and left nothing on disk
            stand: Stand = "cancelled" if run.state.is_cancelled() else "failed"
            return Standing(stand, f"{run.state.name}: {run.state.message}", str(run.id))
        return Standing("under way", "started", str(run.id))

    def _begin(self, handle: Handle, again: str) -> FlowRun | None:
        """The flow run of the stage's generation, raised if it begins again; None when it is finished by now."""
        digests = {role: given.verdict.outputs_digest for role, given in handle.inputs.items()}
        generation = generations.raised_for_dispatch(handle.run, digests, again)
        handle.check_marker()
        return None if handle.finished else self._flow_run_of(handle, generation)

    def _flow_run_of(self, handle: Handle, generation: int) -> FlowRun:
        """The flow run of a stage in a generation: one, however often this is called."""
        name = handle.stage.name
        key = _key(handle, generation)
        deployment = self._client.read_deployment_by_name(handle.stage.deployment)
        return self._client.create_flow_run_from_deployment(
            deployment.id,
            parameters=stage_parameters(handle, self._file),
            name=f"{handle.run.study} {handle.label} {handle.run.fingerprint[:12]}",
            tags=[handle.run.study, name, *(f"seed-{seed}" for seed in sorted(handle.seeds))],
            idempotency_key=key,
            state=Scheduled(
                message="started by a person" if self._person else None,
                state_details=marked("person" if self._person else "automatic"),
            ),
            job_variables=job_variables(self._site, handle, self._source),
        )

    def _held_by(self, run: RunDirectory) -> str:
        """Who works on the stage now, without any flow run that we know of; empty when nobody does."""
        folder = run.path / "locks"
        if locks.holder(folder) is None:
            return ""
        try:  # one on another host can only be watched
            locks.acquire(folder).release()
        except Held as held:
            return str(held)
        return ""

    def _flow_run(self, flow_run: str) -> FlowRun | None:
        try:
            return self._client.read_flow_run(UUID(flow_run))
        except (ObjectNotFound, ValueError):
            return None

    def _job_state(self, entry: Submission, run: RunDirectory) -> str:
        """SLURM's last word on the job of a submission; empty without an answer, FAILED when nothing is left of it."""
        try:
            jobs = self._slurm.jobs().values()
        except Unreachable:
            return ""
        found = [job for job in jobs if job.name == entry.name]
        if not found and entry.job_id:
            accounted = self._slurm.accounted([entry.job_id]).values()
            found = [job for job in accounted if job.name == entry.name and job.state in ENDS]
        if found:
            return found[0].state
        log = evidence.end_of(Journal(jobs_folder(run)).log(entry))
        return "CANCELLED" if evidence.CANCEL_WORDS.search(log) else "FAILED"


class Look(Advance):
    """Walks a page and starts nothing: what `Advance` would start is told as ready."""

    def _start(self, handle: Handle, again: str) -> Standing:
        return Standing("ready", "starting the study starts it")

    def _held_by(self, run: RunDirectory) -> str:
        return ""  # to find out takes the lock


def _finished_lately(last: Submission | None) -> TypeGuard[Submission]:
    if last is None or last.end is None or last.end.follows != "Completed":
        return False
    return time.time() - last.ended_at < UNSEEN_SECONDS


def _key(handle: Handle, generation: int) -> str:
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


def _under_way(run: FlowRun, last: Submission | None) -> Standing:
    state = run.state
    told = f"job {last.job_id}" if last and last.live and last.job_id else (state.name or "") if state else ""
    return Standing("under way", (state.message if state and state.message else "") or told, str(run.id))


def _is_over(run: FlowRun) -> bool:
    return run.state is not None and run.state.is_final()
