"""How each stage of a study on SLURM stands, and its start: by its run directory first, by Prefect second.

A stage may start when its inputs are finished, nobody works on it, and no flow run of it is under way. What is under
way is read from the run directory first (its lock, the journal of its jobs) and from Prefect second, so that a lost
database starts nothing twice.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeGuard
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled

from deployments.dag.walk import Handle
from deployments.prefect.flow_run import AT_ONCE, flow_runs
from deployments.slurm.cluster.client import SlurmCommands, Unreachable
from deployments.slurm.cluster.diagnosis import ENDS, accounted_end
from deployments.slurm.cluster.site import Site, queue_of
from deployments.slurm.job.journal import CANCEL_WORDS, Journal, Submission, end_of, jobs_folder
from deployments.slurm.job.plan import marked
from deployments.slurm.job.variables import Deployments, job_variables, run_name, stage_parameters
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
    flow_run: str | None = None
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


class KnownRuns:
    """Flow runs of a study's stages that Prefect knows, by id and by the key that they were made with, read for
    many at once. One that had ended when it was read is asked for again: a person may have retried it since."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._by_id: dict[str, FlowRun] = {}
        self._by_key: dict[str, FlowRun] = {}
        self._asked: set[str] = set()
        """Ids and keys that were asked for."""

    def read(self, ids: Iterable[str], keys: Iterable[str]) -> None:
        """Asks for all of these, two requests for each AT_ONCE."""
        for by, asked in (("id", [*filter(_is_id, ids)]), ("idempotency_key", [*keys])):
            wanted = sorted({*asked})
            for first in range(0, len(wanted), AT_ONCE):
                where: dict[str, Any] = {by: {"any_": wanted[first : first + AT_ONCE]}}
                for run in flow_runs(self._client, newest_only=True, **where):
                    self._by_id[str(run.id)] = run
                    self._by_key[run.idempotency_key or ""] = run
            self._asked |= {*asked}

    def of(self, flow_run: str) -> FlowRun | None:
        """The flow run of this id; None where the server has none."""
        run = self._by_id.get(flow_run)
        if run is not None and not is_over(run):
            return run
        if run is None and (flow_run in self._asked or not _is_id(flow_run)):
            return None
        try:
            return self._client.read_flow_run(UUID(flow_run))
        except ObjectNotFound:
            return None

    def made_by_now(self, key: str) -> FlowRun | None:
        """Same as `made_with`, asked again: somebody may have made it since all were read."""
        self.read([], [key])
        return self._by_key.get(key)

    def made_with(self, key: str) -> FlowRun | None:
        """The flow run that was made with this key; None where there is none yet."""
        if key not in self._asked:
            return self.made_by_now(key)
        run = self._by_key.get(key)
        return self.of(str(run.id)) if run is not None else None


def is_over(run: FlowRun) -> bool:
    """True where it has ended."""
    return run.state is not None and run.state.is_final()


def _is_id(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


class Starter:
    """Starts stages as flow runs of the pool `gpu`, each at most once; never waits."""

    def __init__(self, client: SyncPrefectClient, site: Site, study_file: Path, source: Path) -> None:
        self._client, self._site, self._file, self._source = client, site, study_file, source
        self._deployments = Deployments(client)

    def start(self, handle: Handle, runs: KnownRuns, person: bool, again: str) -> Standing:
        """A new flow run of the stage; the one that was made already for this generation, when it was."""
        anew = person and not again
        if again:  # by a key that will be a new one: two who start it at once would make two runs of it
            made = runs.made_by_now(key_of(handle, generations.current(handle.run)["generation"]))
            if made is not None and not is_over(made):
                return under_way(made, None)
        try:
            run = self._begin(handle, person, again)
            while run and run.state is not None and run.state.is_final() and (run.state.is_completed() or anew):
                # the folder was removed since, perhaps more than once
                again = f"started again: its flow run is {run.state.name}, and its folder has no marker"
                run = self._begin(handle, person, again)
        except Held as held:
            return Standing("under way", str(held))
        if run is None:
            return Standing("finished", str(handle.run.path))
        if run.state is not None and run.state.is_final():  # it ended and left nothing on disk
            stand: Stand = "cancelled" if run.state.is_cancelled() else "failed"
            return Standing(stand, f"{run.state.name}: {run.state.message}", str(run.id))
        return Standing("under way", "started", str(run.id))

    def _begin(self, handle: Handle, person: bool, again: str) -> FlowRun | None:
        """The flow run of the stage's generation, raised if it begins again; None when it is finished by now."""
        digests = {role: parent.verdict.outputs_digest for role, parent in handle.inputs.items()}
        generation = generations.raised_for_dispatch(handle.run, digests, again)
        handle.check_marker()
        return None if handle.finished else self._flow_run_of(handle, person, generation)

    def _flow_run_of(self, handle: Handle, person: bool, generation: int) -> FlowRun:
        """The flow run of a stage in a generation: one, however often this is called."""
        name = handle.stage.name
        key = key_of(handle, generation)
        return self._client.create_flow_run_from_deployment(
            self._deployments.named(handle.stage.deployment).id,
            parameters=stage_parameters(handle, self._file),
            name=run_name(handle),
            tags=[handle.run.study, name, *(f"seed-{seed}" for seed in sorted(handle.seeds))],
            idempotency_key=key,
            state=Scheduled(
                message="started by a person" if person else None,
                state_details=marked("person" if person else "automatic"),
            ),
            job_variables=job_variables(self._site, handle, self._source),
            work_queue_name=queue_of(self._site),
        )


class Look:
    """Finds how stages stand. Starts nothing without a starter."""

    def __init__(
        self,
        client: SyncPrefectClient,
        slurm: SlurmCommands,
        *,
        starter: Starter | None = None,
        person: bool = False,
        begun: frozenset[str] = frozenset(),
        told: Told = nobody,
    ) -> None:
        """`starter` gets each stage that may start.

        `person`: a person asks, so what failed or was cancelled is ready; otherwise it stays as it is, and so do the
        stages whose fingerprints are `begun`. `told` gets each stage as soon as it is known how it stands."""
        self._slurm, self._starter, self._told = slurm, starter, told
        self._person, self._begun = person, begun
        self._runs, self._found = KnownRuns(client), Standings()

    def at(self, handles: Iterable[Handle]) -> Standings:
        """How these stages stand, and those that were looked at before."""
        every = [*handles]
        if any(handle.refusal for handle in every):  # what else it waits for would be in vain
            self._starter = None
        self._ask_for([handle for handle in every if not handle.finished])
        for handle in every:
            if not handle.finished:
                handle.check_marker()  # its inputs may have become finished on the way
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
        if refusal := handle.refusal:
            return Standing("failed", refusal, bad_input=True)
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
        if self._starter and (holder := held_by(handle.run)):
            return Standing("under way", holder)
        stopped = _stopped(handle.run, last, run)
        if stopped is not None and not person:
            return stopped
        if self._starter is None:
            return Standing("ready", "starting the study starts it")
        return self._starter.start(handle, self._runs, person, f"started again: {stopped.message}" if stopped else "")

    def _made_after(self, handle: Handle, entries: list[Submission]) -> FlowRun | None:
        """The flow run that was made for the stage after all its jobs so far, and has none yet."""
        key = key_of(handle, generations.current(handle.run)["generation"])
        run = self._runs.made_with(key)
        since = entries[-1].submitted_at if entries else 0.0
        if run is None or str(run.id) in {entry.flow_run for entry in entries}:
            return None
        return run if run.created and run.created.timestamp() > since else None

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


def key_of(handle: Handle, generation: int) -> str:
    """Key of a stage's flow run in a generation: Prefect makes one run for each key."""
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
