"""The work of the pool: submit once, look, and do what `reconcile` says.

Knows SLURM and Prefect only by their protocols, so that thousands of histories can be played with fakes of both; the
Prefect worker (worker.py) is a thin shell around it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from deployments.slurm.client import Job, Refused, SlurmClient, Unreachable
from deployments.slurm.diagnosis import Diagnosis
from deployments.slurm.journal import End, Journal, Submission
from deployments.slurm.reconcile import Action, Adopt, Cancel, Finish, Limits, Run, Seen, SetState, reconcile
from deployments.slurm.resources import Resources
from deployments.slurm.script import JobText, sbatch_text
from storage import attempts, durable, locks

LOG = logging.getLogger("ratchet.slurm")
CANCEL_AGAIN_SECONDS = 20.0
MEMORY_WORDS = (b"exceeded memory limit", b"oom-kill", b"oom_kill", b"Out Of Memory")
LOG_END_BYTES = 8192


class Runs(Protocol):
    """What is needed of Prefect."""

    def watched(self, also: Iterable[str]) -> list[Run]:
        """The pool's runs that are Pending, Running or Cancelling, and those named in `also`."""

    def set_state(self, wish: SetState) -> bool:
        """Sets the state if the run is still in the state that the wish was made over; whether it did."""

    def set_job(self, run_id: str, job_id: str) -> None:
        """Notes the SLURM job of a run."""


@dataclass(frozen=True)
class Plan:
    """What the next job of a run is made of."""

    flow_run: str
    folder: Path
    """Where the journal, scripts and logs of the run's jobs are kept; on a disk that all nodes share."""
    label: str
    """The beginning of the job's name."""
    command: list[str]
    directory: Path
    resources: Resources
    environment: dict[str, str] = field(default_factory=dict)
    state_message: str = ""
    """The message of the scheduled state that asked for this job."""


class Pool:
    """All jobs of one work pool."""

    def __init__(
        self,
        slurm: SlurmClient,
        runs: Runs,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slurm, self.runs, self.limits, self._clock = slurm, runs, limits or Limits(), clock
        self.live: dict[str, Submission] = {}
        """The newest submission of each run whose job may still live, by run id; for counting and showing."""
        self.seen: list[Seen] = []
        """What the last look found, for showing it."""
        self._first: dict[tuple[str, str], float] = {}
        self._beats: dict[Path, tuple[float, float]] = {}
        self._cancelled: dict[str, float] = {}

    def submit(self, plan: Plan) -> str | None:
        """Submits the run's next job unless one of its jobs may still live; the job's id if it is known.

        None: SLURM gave no answer; `round` finds the job by its name, or has it submitted again. Raises Refused.
        """
        journal = Journal(plan.folder)
        mine = journal.of(plan.flow_run)
        last = mine[-1] if mine else None
        if last and last.live:
            return last.job_id
        entry, text = _next(plan, journal, last)
        plan.folder.mkdir(parents=True, exist_ok=True)  # a job whose log cannot be opened ends without a word
        durable.write_bytes(journal.script(entry), text.encode())
        self.live[plan.flow_run] = journal.write(entry)
        try:
            job_id = self.slurm.submit(text)
        except Refused as error:
            told = Diagnosis(
                "error",
                "refused",
                f"SLURM refused the job: {error}",
                str(journal.script(entry)),
                "Correct the resources (site file, deployment or study), then retry the run.",
            )
            journal.note_end(entry, End("Failed", told.told, told.as_dict()))
            self.live.pop(plan.flow_run, None)
            raise Refused(told.told) from None
        except Unreachable as error:
            LOG.warning("%s: SLURM gave no answer (%s); it is looked for by its name first", entry.name, error)
            return None
        self.live[plan.flow_run] = journal.note_job(entry, job_id)
        return job_id

    def round(self) -> list[Action]:
        """Looks at SLURM once and at every watched run, and does what follows. Nothing when SLURM does not answer."""
        try:
            jobs = self.slurm.jobs()
        except Unreachable as error:
            LOG.warning("SLURM does not answer: %s", error)
            self._first.clear()  # what was not looked at was not absent
            return []
        watched = self.runs.watched(self.live)
        seen = [self._seen(run, jobs) for run in watched]
        self.seen = seen
        self._forget(seen)
        missing = {
            one.submissions[-1].job_id or ""
            for one in seen
            if one.submissions and one.submissions[-1].live and one.submissions[-1].job_id not in jobs
        }
        accounted = self.slurm.accounted(missing - {""})
        actions = reconcile(seen, jobs, accounted, self.limits)
        for action in actions:
            self._execute(action)
        return actions

    def cancel_at_once(self, runs: Iterable[Run]) -> None:
        """Ends the jobs of runs that are being cancelled without waiting for the next round."""
        ids = [
            self.live[run.id].job_id
            for run in runs
            if run.type in ("CANCELLING", "CANCELLED") and run.id in self.live and self.live[run.id].job_id
        ]
        self._cancel([job_id for job_id in ids if job_id])

    def _seen(self, run: Run, jobs: dict[str, Job]) -> Seen:
        now = self._clock()
        in_state_for = now - self._first.setdefault(("state", run.state_id), now)
        submissions = Journal(Path(run.folder)).of(run.id) if run.folder else []
        if not submissions:
            self.live.pop(run.id, None)
            return Seen(run, in_state_for=in_state_for)
        last = submissions[-1]
        if not last.live:
            self.live.pop(run.id, None)
            return Seen(run, submissions, in_state_for=in_state_for)
        self.live[run.id] = last
        folder = Path(run.folder)
        known = last.job_id in jobs and jobs[last.job_id].name == last.name
        absent_since = self._first.setdefault(("absent", last.name), now)
        if known:
            self._first.pop(("absent", last.name), None)
        return Seen(
            run,
            submissions,
            _attempt_of(folder.parent, last),
            _told_of_memory(Journal(folder).log(last)),
            self._beats_lately(folder.parent / "locks"),
            in_state_for,
            0.0 if known else now - absent_since,
        )

    def _forget(self, seen: list[Seen]) -> None:
        """Drops the memory of states and jobs that are no more."""
        states = {("state", one.run.state_id) for one in seen}
        names = {("absent", one.submissions[-1].name) for one in seen if one.submissions}
        for key in [key for key in self._first if key not in states | names]:
            del self._first[key]

    def _beats_lately(self, folder: Path) -> bool:
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
        last, since = self._beats.get(alive, (0.0, now))
        if beat != last:
            since = now
        self._beats[alive] = (beat, since)
        return now - since <= locks.DEAD_AFTER_SECONDS

    def _execute(self, action: Action) -> None:
        journal = Journal(Path(action.run.folder))
        if isinstance(action, Adopt):
            self.live[action.run.id] = journal.note_job(action.submission, action.job_id)
            self.runs.set_job(action.run.id, action.job_id)
        elif isinstance(action, Finish):
            journal.note_end(action.submission, action.end)
            self.live.pop(action.run.id, None)
            if action.state is not None:
                self.runs.set_state(action.state)
        elif isinstance(action, SetState):
            self.runs.set_state(action)
        elif isinstance(action, Cancel):
            self._cancel([action.job_id])

    def _cancel(self, ids: list[str]) -> None:
        now = self._clock()
        new = [job for job in ids if now - self._cancelled.get(job, -CANCEL_AGAIN_SECONDS) >= CANCEL_AGAIN_SECONDS]
        try:
            self.slurm.cancel(new)
        except Unreachable as error:
            LOG.warning("scancel: %s", error)
            return
        self._cancelled |= dict.fromkeys(new, now)


def preview(plan: Plan) -> str:
    """The text that `Pool.submit` would submit now."""
    journal = Journal(plan.folder)
    mine = journal.of(plan.flow_run)
    return _next(plan, journal, mine[-1] if mine else None)[1]


def _next(plan: Plan, journal: Journal, last: Submission | None) -> tuple[Submission, str]:
    """The entry and the text of the run's next job."""
    number, before = journal.next_number(), journal.all()
    end = last.end if last else None
    asked = plan.resources
    asked = asked.model_copy(
        update={
            "memory_gb": max(asked.memory_gb, (end and end.memory_gb) or 0),
            "exclude": sorted({*asked.exclude, *(end.exclude if end else [])}),
        }
    )
    entry = Submission(
        number,
        f"{plan.label}.{hashlib.sha256(str(plan.folder).encode()).hexdigest()[:6]}.{number}",
        plan.flow_run,
        time.time(),
        automatic=end is None or (end.follows == "AwaitingRetry" and end.message == plan.state_message),
        memory_gb=asked.memory_gb,
        memory_cap_gb=asked.memory_cap_gb,
        cpus=asked.cpus,
        gpus=asked.gpus,
        time_limit_minutes=asked.time_limit_minutes,
    )
    text = sbatch_text(
        JobText(
            entry.name,
            plan.command,
            plan.directory,
            journal.log(entry),
            journal.log(entry).with_suffix(".stop"),
            asked,
            plan.environment,
            next((old.job_id for old in reversed(before) if old.job_id), None),
            entry.automatic,
            asked.lead_seconds + _measured_lead(plan.folder.parent),
        )
    )
    return entry, text


def _attempt_of(run_directory: Path, submission: Submission) -> dict[str, Any] | None:
    """The record of the attempt that this submission's job made, if it made one."""
    for file in sorted((run_directory / "attempts").glob("[0-9]*.json"), reverse=True):
        try:
            record = durable.read_json(file)
        except (OSError, ValueError):
            continue
        if record.get("slurm_job_name") == submission.name:
            return record
        if record.get("started_at", 0) < submission.submitted_at - 600:
            return None
    return None


def _measured_lead(run_directory: Path) -> float:
    """Seconds that a step and a save took in the newest attempt that measured them, twice over."""
    record = attempts.newest(run_directory / "attempts") or {}
    return 2 * (float(record.get("step_seconds") or 0) + float(record.get("save_seconds") or 0))


def _told_of_memory(log: Path) -> bool:
    """Whether the log's end tells of a kill for memory."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_END_BYTES))
            end = file.read()
    except OSError:
        return False
    return any(word in end for word in MEMORY_WORDS)
