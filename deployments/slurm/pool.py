"""The work of the pool: submit once, look, and do what `reconcile` says.

Knows SLURM and Prefect only by their protocols, so that thousands of histories can be played with fakes of both; the
Prefect worker (worker.py) is a thin shell around it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from deployments.slurm.client import Job, Refused, SlurmClient, Unreachable
from deployments.slurm.diagnosis import ENDS, QUEUED, Diagnosis
from deployments.slurm.journal import End, Follows, Journal, Submission
from deployments.slurm.reconcile import Action, Adopt, Attach, Cancel, Finish, Limits, Run, Seen, SetState, reconcile
from deployments.slurm.resources import Resources
from deployments.slurm.script import JobText, sbatch_text
from storage import attempts, durable, locks

LOG = logging.getLogger("ratchet.slurm")
CANCEL_AGAIN_SECONDS = 20.0
LOOKS_APART_SECONDS = 45.0
"""At most so much of the time between two looks counts as absence of a job that both did not find."""
MEMORY_WORDS = (b"exceeded memory limit", b"oom-kill", b"oom_kill", b"Out Of Memory")
CANCEL_WORDS = re.compile(rb"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+ \*\*\*")
"""slurmstepd's last word after a scancel; of a time limit, a preemption or a dead node it says DUE TO what."""
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
    state_id: str = ""
    """The flow run's present state, Pending: the one that asks for this job. Empty: retries of a run whose job still
    lives cannot be told from its first start."""


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
        self._untold: set[str] = set()
        """Runs that were to be told something, and perhaps were not: they are looked at whatever their state is."""
        self._in_state: dict[str, float] = {}
        """When each state of a run was first seen, by its id."""
        self._absent: dict[str, float] = {}
        """For how long looks at SLURM did not find a job, by its name."""
        self._looked: float | None = None
        """When SLURM last answered; None when it did not, the last time it was asked."""
        self._beats: dict[Path, tuple[Path, float, float]] = {}
        self._cancelled: dict[str, float] = {}
        self._sought: dict[str, float] = {}
        self._journals: dict[Path, Journal] = {}
        self._busy: dict[Path, threading.Lock] = {}
        self._guard = threading.Lock()

    def submit(self, plan: Plan) -> str | None:
        """Submits the run's next job unless one of its jobs may still live; the job's id if it is known.

        None: SLURM gave no answer; `round` finds the job by its name, or has it submitted again. Raises Refused, also
        when there is no job that could be submitted. May be called from several threads.
        """
        with self._alone(plan.folder):
            journal = self._journal(plan.folder)
            try:
                entries = journal.all()
                last = _last_of(plan, entries)
                if last and last.live:
                    return last.job_id
                after = self._jobs_before(entries)
            except (OSError, Unreachable) as error:
                LOG.warning("flow run %s: not submitted now: %s", plan.flow_run, error)
                return None
            try:
                entry, text = _next(plan, journal, last, after)
                plan.folder.mkdir(parents=True, exist_ok=True)  # a job whose log cannot be opened ends without a word
                durable.write_bytes(journal.script(entry), text.encode())
                self.live[plan.flow_run] = journal.write(entry)
            except (OSError, ValueError) as error:
                told = Diagnosis("error", "not submitted", f"there is no job to submit: {error}", str(plan.folder))
                raise Refused(told.told) from error
            return self._submitted(plan, journal, entry, text, last.end if last else None)

    def _submitted(self, plan: Plan, journal: Journal, entry: Submission, text: str, before: End | None) -> str | None:
        """Submits what the journal says; the job's id when SLURM tells it."""
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
            memory = before.memory_gb if before else None
            if before and before.exclude:  # perhaps the nodes that failed are all that there are
                advice = f"Nothing to do: {', '.join(before.exclude)} may be used again."
                told = replace(told, level="warning", resolution=advice)
            follows: Follows = "AwaitingRetry" if before and before.exclude else "Failed"
            end = End(follows, told.told, told.as_dict(), memory_gb=memory, over_state=plan.state_id)
            journal.note_end(entry, end)
            self.live.pop(plan.flow_run, None)
            if follows == "AwaitingRetry":
                return None
            raise Refused(told.told) from None
        except Unreachable as error:
            LOG.warning("%s: SLURM gave no answer (%s); it is looked for by its name first", entry.name, error)
            return None
        try:
            self.live[plan.flow_run] = journal.note_job(entry, job_id)
        except OSError as error:
            LOG.warning("%s: job %s could not be noted (%s); it is looked for by its name", entry.name, job_id, error)
        return job_id

    def _jobs_before(self, entries: list[Submission]) -> list[str]:
        """The jobs of this folder, of whatever flow run, that may live; the next one waits until they have ended.

        Raises Unreachable while there may be one whose id only SLURM can tell.
        """
        found = _known_before(entries)
        for entry in entries:
            if entry.live and entry.job_id is None:
                told = [job.id for job in self.slurm.jobs().values() if job.name == entry.name]
                now = self._clock()
                if not told and now - self._sought.setdefault(entry.name, now) <= self.limits.submit_grace:
                    raise Unreachable(f"{entry.name} may have been queued before it")
                found += told
        return found

    @contextmanager
    def _alone(self, folder: Path) -> Iterator[None]:
        """One submission at a time in a folder; `round` leaves it alone meanwhile."""
        with self._guard:
            lock = self._busy.setdefault(folder, threading.Lock())
        with lock:
            yield

    def _journal(self, folder: Path) -> Journal:
        return self._journals.setdefault(folder, Journal(folder))

    def round(self) -> list[Action]:
        """Looks at SLURM once and at every watched run, and does what follows. Nothing when SLURM does not answer."""
        try:
            jobs = self.slurm.jobs()
        except Unreachable as error:
            LOG.warning("SLURM does not answer: %s", error)
            self._looked = None
            self._absent.clear()  # what was not looked at was not absent
            return []
        now = self._clock()
        since = 0.0 if self._looked is None else min(now - self._looked, LOOKS_APART_SECONDS)
        self._looked = now
        watched = self.runs.watched({*list(self.live), *self._untold})
        seen = [one for one in (self._seen(run, jobs, since) for run in watched) if one is not None]
        self.seen = seen
        self._forget(seen)
        missing = {
            one.submissions[-1].job_id or ""
            for one in seen
            if one.submissions and one.submissions[-1].live and one.submissions[-1].job_id not in jobs
        }
        accounted = self.slurm.accounted(missing - {""})
        actions = reconcile(seen, jobs, accounted, self.limits)
        self._untold |= {action.run.id for action in actions if isinstance(action, Finish | SetState)}
        for action in actions:
            try:
                self._execute(action)
            except OSError as error:  # the disk of one run stops no other
                LOG.warning("flow run %s: %s", action.run.id, error)
        return actions

    def cancel_at_once(self, runs: Iterable[Run]) -> None:
        """Ends the jobs of runs that are being cancelled without waiting for the next round."""
        found = [
            (run, entry)
            for run in runs
            if run.type in ("CANCELLING", "CANCELLED") and (entry := self.live.get(run.id)) and self._may_cancel(entry)
        ]
        if not found:
            return
        try:
            jobs = self.slurm.jobs()
        except Unreachable as error:
            LOG.warning("SLURM does not answer: %s", error)
            return
        for run, entry in found:
            job = jobs.get(entry.job_id or "")
            if job is not None and job.name == entry.name:  # the id may be another job's by now
                self._cancel(run, entry)

    def _seen(self, run: Run, jobs: dict[str, Job], since: float) -> Seen | None:
        """What is known of a run, `since` seconds after the last look; None when it is not looked at now."""
        now, folder = self._clock(), Path(run.folder)
        if folder in self._busy and self._busy[folder].locked():
            return None
        in_state_for = now - self._in_state.setdefault(run.state_id, now)
        try:
            submissions = self._journal(folder).of(run.id) if run.folder else []
        except OSError as error:
            LOG.warning("flow run %s: its journal cannot be read: %s", run.id, error)
            self._untold.add(run.id)
            return None
        last = submissions[-1] if submissions else None
        if last is None or not last.live:
            self.live.pop(run.id, None)
            return Seen(run, submissions, in_state_for=in_state_for)
        self.live[run.id] = last
        job = jobs.get(last.job_id or "")
        known = job is not None and job.name == last.name
        self._absent[last.name] = 0.0 if known else self._absent.get(last.name, -since) + since
        if known and job is not None and job.state in QUEUED:
            return Seen(run, submissions, in_state_for=in_state_for)
        attempt = _attempt_of(folder.parent, last)
        if known and job is not None and job.state not in ENDS:
            return Seen(run, submissions, attempt, in_state_for=in_state_for)
        end = _end_of(self._journal(folder).log(last))
        return Seen(
            run,
            submissions,
            attempt,
            any(word in end for word in MEMORY_WORDS),
            CANCEL_WORDS.search(end) is not None,
            not known and self._beats_lately(folder.parent / "locks"),
            in_state_for,
            self._absent[last.name],
            (folder.parent / "COMPLETE.json").exists(),
        )

    def _forget(self, seen: list[Seen]) -> None:
        """Drops the memory of states and jobs that are no more."""
        states = {one.run.state_id for one in seen}
        self._in_state = {state: when for state, when in self._in_state.items() if state in states}
        names = {one.submissions[-1].name for one in seen if one.submissions}
        self._absent = {name: seconds for name, seconds in self._absent.items() if name in names}
        folders = {Path(one.run.folder) for one in seen}
        for folder in [folder for folder in self._journals if folder not in folders]:
            self._journals.pop(folder, None)
            self._beats.pop(folder.parent / "locks", None)

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
        whose, last, since = self._beats.get(folder, (alive, 0.0, now))
        if (whose, last) != (alive, beat):
            since = now
        self._beats[folder] = (alive, beat, since)
        return now - since <= locks.DEAD_AFTER_SECONDS

    def _execute(self, action: Action) -> None:
        run, journal = action.run, self._journal(Path(action.run.folder))
        if isinstance(action, Adopt):
            self.live[run.id] = journal.note_job(action.submission, action.job_id)
            self.runs.set_job(run.id, action.job_id)
        elif isinstance(action, Attach):
            self.live[run.id] = journal.write(replace(action.submission, state_id=run.state_id))
        elif isinstance(action, Finish):
            journal.note_end(action.submission, action.end)
            self.live.pop(run.id, None)
            if action.state is not None:
                self.runs.set_state(action.state)
            self._untold.discard(run.id)
        elif isinstance(action, SetState):
            self.runs.set_state(action)
            self._untold.discard(run.id)
        elif isinstance(action, Cancel):
            self._cancel(run, action.submission)

    def _may_cancel(self, entry: Submission) -> bool:
        """Whether its job is known and was not told to end a moment ago."""
        last = self._cancelled.get(entry.name)
        return entry.job_id is not None and (last is None or self._clock() - last >= CANCEL_AGAIN_SECONDS)

    def _cancel(self, run: Run, entry: Submission) -> None:
        if not self._may_cancel(entry):
            return
        if not entry.cancelled:
            self.live[run.id] = self._journal(Path(run.folder)).write(replace(entry, cancelled=True))
        try:
            self.slurm.cancel([entry.job_id or ""])
        except Unreachable as error:
            LOG.warning("scancel: %s", error)
            return
        self._cancelled[entry.name] = self._clock()


def preview(plan: Plan) -> str:
    """The text that `Pool.submit` would submit now."""
    journal = Journal(plan.folder)
    entries = journal.all()
    return _next(plan, journal, _last_of(plan, entries), _known_before(entries))[1]


def _known_before(entries: list[Submission]) -> list[str]:
    """Ids of the jobs of these entries that may live, and of the newest one."""
    ids = [entry.job_id for entry in entries if entry.job_id and entry.live]
    newest = next((entry.job_id for entry in reversed(entries) if entry.job_id), None)
    return ids if newest is None or newest in ids else [*ids, newest]


def _last_of(plan: Plan, entries: list[Submission]) -> Submission | None:
    """The newest of the entries that is of this flow run."""
    return next((entry for entry in reversed(entries) if entry.flow_run == plan.flow_run), None)


def _next(plan: Plan, journal: Journal, last: Submission | None, after: list[str]) -> tuple[Submission, str]:
    """The entry and the text of the run's next job, which waits for the jobs `after`. ValueError if it has none."""
    number = journal.next_number()
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
        attempts_before=_newest_attempt(plan.folder.parent),
        state_id=plan.state_id,
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
            after,
            entry.automatic,
            asked.lead_seconds + _measured_lead(plan.folder.parent),
        )
    )
    return entry, text


def _attempt_of(run_directory: Path, submission: Submission) -> dict[str, Any] | None:
    """The record of the attempt that this submission's job made, if it made one."""
    for number in reversed(_attempt_numbers(run_directory)):
        if number <= submission.attempts_before:
            return None
        try:
            record = durable.read_json(run_directory / "attempts" / f"{number:04d}.json")
        except (OSError, ValueError):
            continue
        if record.get("slurm_job_name") == submission.name:
            return record
    return None


def _attempt_numbers(run_directory: Path) -> list[int]:
    try:
        names = [name.partition(".") for name in os.listdir(run_directory / "attempts")]
    except OSError:
        return []
    return sorted(int(stem) for stem, _, suffix in names if stem.isdigit() and suffix == "json")


def _newest_attempt(run_directory: Path) -> int:
    return max(_attempt_numbers(run_directory), default=0)


def _measured_lead(run_directory: Path) -> float:
    """Seconds that a step and a save took in the newest attempt that measured them, twice over."""
    record = attempts.newest(run_directory / "attempts") or {}
    return 2 * (float(record.get("step_seconds") or 0) + float(record.get("save_seconds") or 0))


def _end_of(log: Path) -> bytes:
    """The last lines of a job's log; empty when it has none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_END_BYTES))
            return file.read()
    except OSError:
        return b""
