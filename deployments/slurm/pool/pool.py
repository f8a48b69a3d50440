"""The work on all jobs: submit once, poll SLURM, and do what `reconcile` decides.

Asks SLURM only by the few calls of `SlurmCommands`, so that thousands of histories can be played with a fake of it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from deployments.slurm.cluster.client import Job, SlurmCommands, Unreachable
from deployments.slurm.cluster.diagnosis import ENDS, QUEUED
from deployments.slurm.job.journal import CANCEL_WORDS, MEMORY_WORDS, Heartbeats, Submission, attempt_of, end_of
from deployments.slurm.job.plan import Plan
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
from deployments.slurm.pool.records import Records
from deployments.slurm.pool.submissions import Submissions

LOG = logging.getLogger("ratchet.slurm")
CANCEL_AGAIN_SECONDS = 20.0
POLLS_APART_SECONDS = 45.0
"""Most of the time between two polls that counts as absence of a job that neither found."""


class Pool:
    """All jobs below one root."""

    def __init__(
        self,
        slurm: SlurmCommands,
        runs: Records,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        ours: Callable[[], bool] = lambda: True,
        arrays: Path = Path(),
    ) -> None:
        """`ours`: whether this process still serves the root. One whose disk hung for a minute may not any more.
        `arrays`: where scripts of job arrays are kept, on a disk that all nodes share."""
        self.slurm, self.runs, self.limits, self._clock = slurm, runs, limits or Limits(), clock
        self._ours = ours
        self.submissions = Submissions(slurm, self.limits, clock, ours, arrays)
        self.live = self.submissions.live
        """The newest submission of each run whose job may still live, by run id; for counting and showing."""
        self.seen: list[Seen] = []
        """Findings of the last poll, for showing them."""
        self.alive: Alive | None = None
        """The user's queued and running jobs; None when SLURM did not answer."""
        self.done: list[Action] = []
        """Actions of the last poll; when an error ended it, those done before."""
        self._unsettled: set[str] = set()
        """Runs whose state was to be set, and perhaps was not: they are read whatever their state is."""
        self._in_state: dict[str, float] = {}
        """When each state of a run was first seen, by its id."""
        self._absent: dict[str, float] = {}
        """Time for which polls did not find a job, by its name."""
        self._polled: float | None = None
        """When SLURM last answered; None when the last poll had no answer."""
        self._beats = Heartbeats(clock)
        self._cancelled: dict[str, float] = {}
        """When a job was last cancelled, or was to be and not found, by its name."""

    def submit(self, plan: Plan) -> str | None:
        """Same as `Submissions.submit`."""
        return self.submissions.submit(plan)

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
        gathered = self.submissions.gathered  # before the runs are read: what is read is newer
        watched = self.runs.watched({*list(self.live), *self._unsettled})
        states = {run.id: run.state_id for run in watched if run.type == "PENDING"}
        asked = [plan for plan in gathered if states.get(plan.flow_run) == plan.state_id]
        self.submissions.ungather(plan for plan in gathered if plan not in asked)  # the run was cancelled since, say
        seen = [state for state in (self._seen(run, jobs, since) for run in watched) if state is not None]
        self.seen = seen
        self.alive = self._alive(watched, jobs)
        self._forget(seen)
        missing = {
            state.submissions[-1].job_id or ""
            for state in seen
            if state.submissions and state.submissions[-1].live and state.submissions[-1].job_id not in jobs
        }
        accounted = self.slurm.accounted(missing - {""})
        actions = reconcile(seen, jobs, accounted, self.limits)
        self._unsettled |= {action.run.id for action in actions if isinstance(action, Finish | SetState)}
        for action in actions:
            if not self._ours():
                break
            try:
                self._execute(action)
            except (OSError, ValueError) as error:  # the disk of one run stops no other
                LOG.warning("run %s: %s", action.run.id, error)
            else:
                self.done.append(action)
        self.submissions.submit_gathered(asked)
        return self.done

    def _seen(self, run: Run, jobs: dict[str, Job], since: float) -> Seen | None:
        """Facts known of a run, `since` seconds after the last poll; None when it cannot be read now."""
        now, folder = self._clock(), Path(run.folder)
        in_state_for = now - self._in_state.setdefault(run.state_id, now)
        try:
            return self._on_disk(run, folder, jobs, since, in_state_for)
        except (OSError, ValueError, TypeError) as error:
            LOG.warning("run %s: its run directory cannot be read: %s", run.id, error)
            self._unsettled.add(run.id)
            return None

    def _on_disk(self, run: Run, folder: Path, jobs: dict[str, Job], since: float, in_state_for: float) -> Seen:
        """Facts that journal, records and logs tell of a run, as far as SLURM's answer leaves them open."""
        submissions = self.submissions.journal(folder).of(run.id) if run.folder else []
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
        attempt = attempt_of(folder.parent, last, ended)
        if known and job is not None and job.state not in ENDS:
            return Seen(run, submissions, attempt, in_state_for=in_state_for)
        end = end_of(self.submissions.journal(folder).log(last))
        return Seen(
            run,
            submissions,
            attempt,
            any(word in end for word in MEMORY_WORDS),
            CANCEL_WORDS.search(end) is not None,
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
        states = {watched.run.state_id for watched in seen}
        self._in_state = {state: when for state, when in self._in_state.items() if state in states}
        names = {watched.submissions[-1].name for watched in seen if watched.submissions}
        self._absent = {name: seconds for name, seconds in self._absent.items() if name in names}
        folders = {Path(watched.run.folder) for watched in seen}
        for folder in self.submissions.forget(folders):
            self._beats.forget(folder.parent / "locks")

    def _execute(self, action: Action) -> None:
        run, journal = action.run, self.submissions.journal(Path(action.run.folder))
        if isinstance(action, Adopt):
            self.live[run.id] = journal.note_job(action.submission, action.job_id)
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
        """True where its job is known and was not cancelled a moment ago."""
        last = self._cancelled.get(entry.name)
        return entry.job_id is not None and (last is None or self._clock() - last >= CANCEL_AGAIN_SECONDS)

    def _cancel(self, run: Run, entry: Submission) -> None:
        if not self._may_cancel(entry):
            return
        if not entry.cancelled:
            self.live[run.id] = self.submissions.journal(Path(run.folder)).write(replace(entry, cancelled=True))
        try:
            self.slurm.cancel([entry.job_id or ""])
        except Unreachable as error:
            LOG.warning("scancel: %s", error)
            return
        self._cancelled[entry.name] = self._clock()
