"""The work of the pool: submit once, poll SLURM, and do what `reconcile` decides.

Knows SLURM and Prefect only by their protocols, so that thousands of histories can be played with fakes of both; the
Prefect worker (worker.py) is a thin shell around it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from deployments.slurm.cluster.client import Job, NotNow, Refused, SlurmClient, Unreachable, task_name
from deployments.slurm.cluster.diagnosis import ENDS, QUEUED
from deployments.slurm.job import evidence
from deployments.slurm.job.journal import End, Journal, Submission
from deployments.slurm.job.plan import Plan, known_before, last_of, next_job
from deployments.slurm.job.script import array_text, sbatch_text
from deployments.slurm.pool.arrays import First, Submitted, array_name, groups, lead_to
from deployments.slurm.pool.places import UNDER_WAY, Alive
from deployments.slurm.pool.reconcile import (
    Action,
    Adopt,
    Attach,
    Cancel,
    Finish,
    Limits,
    Run,
    Seen,
    SetState,
    reconcile,
)
from storage import durable
from tasks.stage.diagnosis import Diagnosis
from tasks.stage.outcome import Follows

LOG = logging.getLogger("ratchet.slurm")
CANCEL_AGAIN_SECONDS = 20.0
POLLS_APART_SECONDS = 45.0
"""At most so much of the time between two polls counts as absence of a job that neither found."""


class Runs(Protocol):
    """What is needed of Prefect."""

    def watched(self, also: Iterable[str]) -> list[Run]:
        """The pool's runs that are Pending, Running or Cancelling, and those named in `also`."""

    def set_state(self, wish: SetState) -> bool:
        """Sets the state if the run is still in the state that the wish was made over; whether it did."""

    def set_job(self, run_id: str, job_id: str) -> None:
        """Notes the SLURM job of a run."""


class Pool:
    """All jobs of one work pool."""

    def __init__(
        self,
        slurm: SlurmClient,
        runs: Runs,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        ours: Callable[[], bool] = lambda: True,
        arrays: Path = Path(),
    ) -> None:
        """`ours`: whether this process still serves the pool. One whose disk hung for a minute may not any more.
        `arrays`: where scripts of job arrays are kept, on a disk that all nodes share."""
        self.slurm, self.runs, self.limits, self._clock = slurm, runs, limits or Limits(), clock
        self._ours, self._arrays = ours, arrays
        self.live: dict[str, Submission] = {}
        """The newest submission of each run whose job may still live, by run id; for counting and showing."""
        self.seen: list[Seen] = []
        """What the last poll found, for showing it."""
        self.alive: Alive | None = None
        """The user's queued and running jobs; None when SLURM did not answer."""
        self.done: list[Action] = []
        """What the last poll did; when an error of Prefect ended it, what it did before."""
        self._unsettled: set[str] = set()
        """Runs whose state was to be set, and perhaps was not: they are read whatever their state is."""
        self._in_state: dict[str, float] = {}
        """When each state of a run was first seen, by its id."""
        self._absent: dict[str, float] = {}
        """For how long polls did not find a job, by its name."""
        self._polled: float | None = None
        """When SLURM last answered; None when the last poll had no answer."""
        self._beats = evidence.Heartbeats(clock)
        self._gathered: dict[str, Plan] = {}
        """Whose first jobs the next poll submits as arrays, by run id."""
        self._cancelled: dict[str, float] = {}
        """When a job was last cancelled, or was to be and not found, by its name."""
        self._sought: dict[str, float] = {}
        self._journals: dict[Path, Journal] = {}
        self._busy: dict[Path, threading.Lock] = {}
        self._guard = threading.Lock()

    def submit(self, plan: Plan) -> str | None:
        """Submits the run's next job unless one of its jobs may still live; the job's id if it is known.

        None: SLURM gave no answer; `poll` finds the job by its name, or has it submitted again. Or the job is one for
        an array, which the next `poll` submits. Raises Refused, also when there is no job that could be submitted. May
        be called from several threads.
        """
        with self._alone(plan.folder):
            journal = self._journal(plan.folder)
            try:
                entries = journal.all()
                last = last_of(plan, entries)
                if last and last.live:
                    return last.job_id
                after = self._jobs_before(entries)
            except (OSError, Unreachable) as error:
                LOG.warning("flow run %s: not submitted now: %s", plan.flow_run, error)
                return None
            try:
                entry, job = next_job(plan, journal, last, after)
                text = sbatch_text(job)
                if not self._ours():
                    return None
                if plan.array_tasks and not entries:
                    with self._guard:
                        self._gathered[plan.flow_run] = plan
                    return None
                self._write(plan, journal, entry, text)
            except (OSError, ValueError) as error:
                found = Diagnosis("error", "not submitted", f"there is no job to submit: {error}", str(plan.folder))
                raise Refused(found.text) from error
            return self._submitted([Submitted(plan, journal, entry)], text, last.end if last else None)

    def _write(self, plan: Plan, journal: Journal, entry: Submission, text: str) -> None:
        """Keeps script and entry before SLURM hears of them."""
        plan.folder.mkdir(parents=True, exist_ok=True)  # a job whose log cannot be opened ends without a trace
        durable.write_bytes(journal.script(entry), text.encode())
        self.live[plan.flow_run] = journal.write(entry)

    def _submitted(self, those: list[Submitted], text: str, before: End | None = None) -> str | None:
        """Submits what stands in the journal; the id of the job, or of the array, when SLURM gives it."""
        if not self._ours():
            return None
        try:
            job_id = self.slurm.submit(text)
        except Refused as error:
            refusals = [self._note_refusal(one, error, before) for one in those]
            if refusals[0].follows == "AwaitingRetry":
                return None
            raise Refused(refusals[0].message) from None
        except Unreachable as error:
            name = those[0].entry.name
            LOG.warning("%s: SLURM gave no answer (%s); it is searched for by its name first", name, error)
            return None
        for one in those:
            self._note_job(one, one.id_in(job_id))
        return job_id

    def _note_job(self, one: Submitted, job_id: str) -> None:
        name = one.entry.name
        try:
            self.live[one.plan.flow_run] = one.journal.note_job(one.entry, job_id)
        except OSError as error:
            LOG.warning("%s: job %s could not be noted (%s); it is searched for by its name", name, job_id, error)

    def _note_refusal(self, one: Submitted, error: Refused, before: End | None) -> End:
        end = replace(self._refused(error, one.journal.script(one.entry), before), over_state=one.plan.state_id)
        one.journal.note_end(one.entry, end)
        self.live.pop(one.plan.flow_run, None)
        return end

    def _submit_gathered(self, plans: list[Plan]) -> None:
        """Submits the first jobs of these runs, as arrays of those that ask for the same."""
        if not plans or not self._ours():
            return
        done: list[Submitted] = []
        with ExitStack() as alone:
            for folder in sorted({plan.folder for plan in plans}):
                alone.enter_context(self._alone(folder))
            for group in groups(self._firsts(plans)):
                done += self._submit_group(group) if len(group) > 1 else self._submit_first(group[0])
        self._ungather(plans)
        for one in done:
            if job_id := self.live.get(one.plan.flow_run, one.entry).job_id:
                self.runs.set_job(one.plan.flow_run, job_id)

    def _ungather(self, plans: Iterable[Plan]) -> None:
        with self._guard:
            for plan in plans:
                if self._gathered.get(plan.flow_run) is plan:  # and not a later one of the same run
                    del self._gathered[plan.flow_run]

    def _firsts(self, plans: list[Plan]) -> Iterator[First]:
        """The first jobs of these runs. One whose folder has a job by now stays Pending, and is asked for again."""
        for folder, plan in {plan.folder: plan for plan in plans}.items():
            journal = self._journal(folder)
            try:
                if not journal.all():
                    yield First(plan, journal, *next_job(plan, journal, None, []))
            except OSError as error:
                LOG.warning("flow run %s: not submitted now: %s", plan.flow_run, error)

    def _submit_first(self, first: First) -> list[Submitted]:
        """Submits a job of its own."""
        one = Submitted(first.plan, first.journal, first.entry)
        text = sbatch_text(first.job)
        try:
            self._write(one.plan, one.journal, one.entry, text)
        except OSError as error:
            LOG.warning("flow run %s: not submitted now: %s", one.plan.flow_run, error)
            return []
        with suppress(Refused):  # the journal has it: the next poll sets the run's state
            self._submitted([one], text)
        return [one]

    def _submit_group(self, group: list[First]) -> list[Submitted]:
        """Submits one array. A run whose job cannot be written stays Pending, and is asked for again."""
        name, those = array_name(group), list[Submitted]()
        folder = self._arrays / name
        for task, first in enumerate(group, 1):  # a number that was written once is no other job's
            plan, journal = first.plan, first.journal
            try:
                entry, job = next_job(plan, journal, None, [], task_name(name, task))
                lead_to(folder, task, journal.script(entry), journal.log(entry))
                self._write(plan, journal, entry, sbatch_text(job))
            except OSError as error:
                LOG.warning("flow run %s: not submitted now: %s", plan.flow_run, error)
            else:
                those.append(Submitted(plan, journal, entry, task))
        if those:
            numbers = [one.task for one in those if one.task]
            text = array_text(name, folder, group[0].job, numbers, group[0].plan.array_tasks or 1)
            with suppress(Refused):  # as for one
                self._submitted(those, text)
        return those

    def _refused(self, error: Refused, script: Path, before: End | None) -> End:
        """What follows a refusal: one that time or other nodes mend does not fail the run."""
        found = Diagnosis(
            "error",
            "refused",
            f"SLURM refused the job: {error}",
            str(script),
            "Correct the site file or the deployment and retry the run; or the study, and start it again.",
        )
        follows: Follows = "Failed"
        memory, exclude, delay = (before.memory_gb, before.exclude, 0.0) if before else (None, [], 0.0)
        if isinstance(error, NotNow):
            advice = f"Nothing to do: it is tried again every {self.limits.not_now_delay / 60:g} minutes."
            found = replace(found, level="warning", category="not now", resolution=advice)
            follows, delay = "AwaitingRetry", self.limits.not_now_delay
        elif exclude:  # perhaps the nodes that failed are all that there are
            advice = f"Nothing to do: {', '.join(exclude)} may be used again."
            found = replace(found, level="warning", resolution=advice)
            follows, exclude = "AwaitingRetry", []
        return End(follows, found.text, found, delay, memory, exclude)

    def _jobs_before(self, entries: list[Submission]) -> list[str]:
        """The jobs of this folder, of whatever flow run, that may live; the next one waits until they have ended.

        Raises Unreachable while there may be one whose id only SLURM knows.
        """
        found = known_before(entries)
        for entry in entries:
            if entry.live and entry.job_id is None:
                named = [job.id for job in self.slurm.jobs().values() if job.name == entry.name]
                now = self._clock()
                if not named and now - self._sought.setdefault(entry.name, now) <= self.limits.submit_grace:
                    raise Unreachable(f"{entry.name} may have been queued before it")
                found += named
        return found

    @contextmanager
    def _alone(self, folder: Path) -> Iterator[None]:
        """One submission at a time in a folder; `poll` leaves it alone meanwhile."""
        with self._guard:
            lock = self._busy.setdefault(folder, threading.Lock())
        with lock:
            yield

    def _journal(self, folder: Path) -> Journal:
        if folder not in self._journals:  # another host may have served the pool until a moment ago
            durable.refresh(folder)
        return self._journals.setdefault(folder, Journal(folder))

    def poll(self) -> list[Action]:
        """Asks SLURM once for all jobs, reads every watched run and does what follows; returns what it did, which is
        nothing when SLURM does not answer."""
        self.seen, self.done = [], []
        try:
            jobs = self.slurm.jobs()
        except Unreachable as error:
            LOG.warning("SLURM does not answer: %s", error)
            self._polled = self.alive = None
            self._absent.clear()  # without an answer nothing is absent
            return []
        now = self._clock()
        since = 0.0 if self._polled is None else min(now - self._polled, POLLS_APART_SECONDS)
        self._polled = now
        gathered = list(self._gathered.values())  # before the runs are read: what is read is newer
        watched = self.runs.watched({*list(self.live), *self._unsettled})
        states = {run.id: run.state_id for run in watched if run.type == "PENDING"}
        self._ungather(plan for plan in gathered if states.get(plan.flow_run) != plan.state_id)  # cancelled since, say
        seen = [one for one in (self._seen(run, jobs, since) for run in watched) if one is not None]
        self.seen = seen
        self.alive = self._alive(watched, jobs)
        self._forget(seen)
        missing = {
            one.submissions[-1].job_id or ""
            for one in seen
            if one.submissions and one.submissions[-1].live and one.submissions[-1].job_id not in jobs
        }
        accounted = self.slurm.accounted(missing - {""})
        actions = reconcile(seen, jobs, accounted, self.limits)
        self._unsettled |= {action.run.id for action in actions if isinstance(action, Finish | SetState)}
        for action in actions:
            if not self._ours():
                break
            try:
                self._execute(action)
            except OSError as error:  # the disk of one run stops no other
                LOG.warning("flow run %s: %s", action.run.id, error)
            else:
                self.done.append(action)
        self._submit_gathered([plan for plan in gathered if states.get(plan.flow_run) == plan.state_id])
        return self.done

    def cancel_at_once(self, runs: Iterable[Run]) -> None:
        """Ends the jobs of runs that are being cancelled without waiting for the next poll."""
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
            else:  # gone, as it seems: SLURM is not asked every two seconds
                self._cancelled[entry.name] = self._clock()

    def _seen(self, run: Run, jobs: dict[str, Job], since: float) -> Seen | None:
        """What is known of a run, `since` seconds after the last poll; None when it cannot be read now."""
        now, folder = self._clock(), Path(run.folder)
        if (folder in self._busy and self._busy[folder].locked()) or run.id in self._gathered:
            return None
        in_state_for = now - self._in_state.setdefault(run.state_id, now)
        try:
            return self._on_disk(run, folder, jobs, since, in_state_for)
        except OSError as error:
            LOG.warning("flow run %s: its run directory cannot be read: %s", run.id, error)
            self._unsettled.add(run.id)
            return None

    def _on_disk(self, run: Run, folder: Path, jobs: dict[str, Job], since: float, in_state_for: float) -> Seen:
        """What journal, records and logs say of a run, as far as SLURM's answer leaves it open."""
        submissions = self._journal(folder).of(run.id) if run.folder else []
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
        ended = not known or (job is not None and job.state in ENDS)
        attempt = evidence.attempt_of(folder.parent, last, ended)
        if known and job is not None and job.state not in ENDS:
            return Seen(run, submissions, attempt, in_state_for=in_state_for)
        end = evidence.end_of(self._journal(folder).log(last))
        return Seen(
            run,
            submissions,
            attempt,
            any(word in end for word in evidence.MEMORY_WORDS),
            evidence.CANCEL_WORDS.search(end) is not None,
            not known and self._beats.lately(folder.parent / "locks"),
            in_state_for,
            self._absent[last.name],
            (folder.parent / "COMPLETE.json").exists(),
        )

    def _alive(self, watched: list[Run], jobs: dict[str, Job]) -> Alive:
        types = {run.id: run.type for run in watched}
        ours = {entry.name: types.get(run_id) for run_id, entry in self.live.items()}
        alive = Alive()
        for job in jobs.values():
            if job.state in ENDS:
                continue
            if job.name not in ours:
                alive.others.append(job)
            elif ours[job.name] in UNDER_WAY:
                alive.counted.append(job)
            else:
                alive.uncounted.append(job)
        return alive

    def _forget(self, seen: list[Seen]) -> None:
        """Drops the memory of states and jobs that are no more."""
        states = {one.run.state_id for one in seen}
        self._in_state = {state: when for state, when in self._in_state.items() if state in states}
        names = {one.submissions[-1].name for one in seen if one.submissions}
        self._absent = {name: seconds for name, seconds in self._absent.items() if name in names}
        folders = {Path(one.run.folder) for one in seen}
        for folder in [folder for folder in list(self._journals) if folder not in folders]:
            self._journals.pop(folder, None)
            self._beats.forget(folder.parent / "locks")

    def _execute(self, action: Action) -> None:
        run, journal = action.run, self._journal(Path(action.run.folder))
        if isinstance(action, Adopt):
            self.live[run.id] = journal.note_job(action.submission, action.job_id)
            self.runs.set_job(run.id, action.job_id)
        elif isinstance(action, Attach):
            self.live[run.id] = journal.write(replace(action.submission, state_id=run.state_id))
        elif isinstance(action, Finish):
            if action.submission.live:
                journal.note_end(action.submission, action.end)
            self.live.pop(run.id, None)
            if action.state is not None:
                self.runs.set_state(action.state)
            self._unsettled.discard(run.id)
        elif isinstance(action, SetState):
            self.runs.set_state(action)
            self._unsettled.discard(run.id)
        elif isinstance(action, Cancel):
            self._cancel(run, action.submission)

    def _may_cancel(self, entry: Submission) -> bool:
        """Whether its job is known and was not cancelled a moment ago."""
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
