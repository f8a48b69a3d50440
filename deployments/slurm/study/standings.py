"""How each stage of a study on SLURM stands, and its start: by its run directory first, by its run second.

A stage may start when its inputs are finished, nobody works on it, and no run of it is under way. What is under way is
read from the run directory first (its lock, the journal of its jobs) and from Prefect, or the engine's record, second,
so that a lost database starts nothing twice.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeGuard

from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import SlurmCommands, Unreachable
from deployments.slurm.cluster.diagnosis import ENDS, accounted_end
from deployments.slurm.job.journal import CANCEL_WORDS, Journal, Submission, end_of, jobs_folder
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


@dataclass(frozen=True)
class KnownRun:
    """A run of a stage, as Prefect or the engine's own record has it."""

    id: str
    type: str
    name: str
    message: str
    created_at: float
    """Seconds since 1970."""

    @property
    def over(self) -> bool:
        """True where it has ended."""
        return self.type in ("COMPLETED", "CANCELLED", "FAILED", "CRASHED")


class KnownRuns(Protocol):
    """The runs of a study's stages."""

    def read(self, handles: Iterable[Handle], ids: Iterable[str]) -> None:
        """Asks for the present runs of these stages, and the runs of these ids, all at once."""

    def of(self, run: str) -> KnownRun | None:
        """The run of this id; None where there is none."""

    def made_for(self, handle: Handle) -> KnownRun | None:
        """The run that was made for the stage in its present generation; None where there is none yet."""

    def made_by_now(self, handle: Handle) -> KnownRun | None:
        """Same as `made_for`, asked again: somebody may have made it since all were read."""


class Starter(ABC):
    """Starts stages as runs of the pool of jobs, each at most once; never waits."""

    @abstractmethod
    def make(self, handle: Handle, person: bool, generation: int) -> KnownRun:
        """The run of a stage in a generation: one, however often this is called."""

    def start(self, handle: Handle, runs: KnownRuns, person: bool, again: str) -> Standing:
        """A new flow run of the stage; the one that was made already for this generation, when it was."""
        anew = person and not again
        if again:  # by a key that will be a new one: two who start it at once would make two runs of it
            made = runs.made_by_now(handle)
            if made is not None and not made.over:
                return under_way(made, None)
        try:
            run = self._begin(handle, person, again)
            while run and run.over and (run.type == "COMPLETED" or anew):
                # the folder was removed since, perhaps more than once
                again = f"started again: its flow run is {run.name}, and its folder has no marker"
                run = self._begin(handle, person, again)
        except Held as held:
            return Standing("under way", str(held))
        if run is None:
            return Standing("finished", str(handle.run.path))
        if run.over:  # it ended and left nothing on disk
            return Standing("cancelled" if run.type == "CANCELLED" else "failed", f"{run.name}: {run.message}", run.id)
        return Standing("under way", "started", run.id)

    def _begin(self, handle: Handle, person: bool, again: str) -> KnownRun | None:
        """The run of the stage's generation, raised if it begins again; None when it is finished by now."""
        digests = {role: parent.verdict.outputs_digest for role, parent in handle.inputs.items()}
        generation = generations.raised_for_dispatch(handle.run, digests, again)
        handle.check_marker()
        return None if handle.finished else self.make(handle, person, generation)


class Look:
    """Finds how stages stand. Starts nothing without a starter."""

    def __init__(
        self,
        runs: KnownRuns,
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
        self._runs, self._found = runs, Standings()

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
        """Reads what is known of the runs of these stages."""
        entries = [Journal(jobs_folder(handle.run)).all() for handle in handles]
        self._runs.read(handles, [some[-1].flow_run for some in entries if some])

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
        if (run is None or run.over) and (made := self._made_after(handle, entries)):
            run, last = made, None  # whatever its end was, the stage was started again since
        if run is not None and not run.over:
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

    def _made_after(self, handle: Handle, entries: list[Submission]) -> KnownRun | None:
        """The run that was made for the stage after all its jobs so far, and has none yet."""
        run = self._runs.made_for(handle)
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


def _stopped(directory: RunDirectory, last: Submission | None, run: KnownRun | None) -> Standing | None:
    """Why the stage does not go on by itself, as far as disk and its run say; None when it may."""
    end = last.end if last else None
    if last and end and end.follows == "Cancelled":
        return Standing("cancelled", end.message, last.flow_run)
    if last and end and end.follows == "Failed":
        bad_input = end.diagnosis is not None and end.diagnosis.category == "bad input"
        return Standing("failed", end.message, last.flow_run, bad_input)
    if run is not None and run.type == "CANCELLED":
        return Standing("cancelled", run.message or "cancelled", run.id)
    unsubmitted = last is None or (end is not None and end.follows == "AwaitingRetry")
    if run is not None and run.type in ("FAILED", "CRASHED") and unsubmitted:  # its next job was refused
        return Standing("failed", run.message or run.name, run.id)
    record = attempts.newest(directory.attempts)
    if record and stops(record.get("end_state")):
        summary = (record.get("diagnosis") or {}).get("summary", "")
        return Standing("failed", summary, None, record["end_state"] == "bad_input")
    return None


def under_way(run: KnownRun, last: Submission | None) -> Standing:
    """How a stage stands whose run has not ended; `last` is its newest job, where it is of this run."""
    name = f"job {last.job_id}" if last and last.live and last.job_id else run.name
    return Standing("under way", run.message or name, run.id)
