"""Decides what to do about each flow run, given all that is known of it: a pure function.

Disk is read first (the attempt's record), then SLURM. Only a state on the list of ends ends a run; unknown, vanished
and unreachable mean: wait. Whatever is decided twice is decided alike, so a worker may die between any two lines of
what executes the actions.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from deployments.slurm.cluster import diagnosis
from deployments.slurm.cluster.client import Job
from deployments.slurm.job.journal import End, Submission
from deployments.slurm.job.plan import Origin
from deployments.slurm.job.script import BAD_INPUT, DISK_FULL, HELD, SETUP_FAILED
from tasks.stage.outcome import AWAITING_RETRY, END_STATES, PRECEDENCE, Category, Diagnosis, Follows, in_words, stops

LOG = logging.getLogger("ratchet.slurm")
CONTINUES_LATER = "Nothing to do: the next job tries again in some minutes."
LONGER = "Raise time_limit_minutes (site file, or execution.resources of the study): the next job has it."
NOT_TAKEN = Diagnosis(
    "warning", "not submitted", "SLURM did not take the job", resolution="Nothing to do: it is submitted again."
)
NOT_SUBMITTED = "no job was submitted: the worker or the server was away"
ASKED_AGAIN = "somebody retried the run after its last job was cancelled or had ended"
BEFORE_THE_STAGE = 3
"""Jobs in a row that may end before the stage began."""
MEMORY_FACTOR = 1.5
OPEN = ("PENDING", "RUNNING", "CANCELLING", "CRASHED")
"""Types of a flow run's state that the end of its job still decides."""


@dataclass(frozen=True)
class Limits:
    """Waiting times in seconds."""

    submit_grace: float = 60.0
    """After a submit without an answer, before its name is taken for not queued."""
    vanished: float = 300.0
    """After a job was last seen, before it is taken for lost (only when its heartbeat stands still too)."""
    lost_queue: float = 60.0
    """Same as `vanished`, where the accounting says too that the cluster lost its queue."""
    unsubmitted: float = 120.0
    """Longest time of a flow run Pending without any submission: its worker died before it wrote one."""
    crash_delay: float = 30.0
    held_delay: float = 300.0
    not_now_delay: float = 300.0
    """Before a job is submitted again that SLURM did not take for the time being."""


@dataclass(frozen=True)
class Run:
    """A flow run as Prefect has it."""

    id: str
    state_id: str
    type: str
    name: str
    message: str = ""
    folder: str = ""
    """Folder of its jobs' journal."""


@dataclass(frozen=True)
class Seen:
    """All that is known of one flow run."""

    run: Run
    submissions: Sequence[Submission] = ()
    attempt: Mapping[str, Any] | None = None
    """The attempt's record that the newest submission's job wrote, if any."""
    memory_exceeded: bool = False
    """True where the end of the job's log shows a kill for memory (clusters without cgroups)."""
    cancel_logged: bool = False
    """True where the end of the job's log shows a scancel (all that is left of it when SLURM forgot the job)."""
    heartbeat: bool = False
    """True where the run directory's lock is held and its heartbeat moved lately; read when SLURM knows no such job."""
    in_state_for: float = 0.0
    absent_for: float = 0.0
    """How long SLURM answered without knowing the newest submission's job."""
    marker: bool = False
    """True where the stage's marker is there."""


@dataclass(frozen=True)
class Adopt:
    """The job of a submission without an answer was found."""

    run: Run
    submission: Submission
    job_id: str


@dataclass(frozen=True)
class Attach:
    """A person asked for the run again while its job lives: from now on this job is what was asked for."""

    run: Run
    submission: Submission


@dataclass(frozen=True)
class Finish:
    """A submission has ended: write that into the journal (unless it is there), then set `state` in Prefect (if there
    is one)."""

    run: Run
    submission: Submission
    end: End
    state: SetState | None


@dataclass(frozen=True)
class SetState:
    run: Run
    type: str
    name: str
    message: str
    delay_seconds: float = 0.0
    origin: Origin = "automatic"
    """For a scheduled state: who asks by it for the run's next job."""
    needs_person: bool = False
    """True where the run waits until a person acts, so that one must be notified."""


@dataclass(frozen=True)
class Cancel:
    """Note that it is doomed, then end it."""

    run: Run
    submission: Submission


Action = Adopt | Attach | Finish | SetState | Cancel

TYPES = {state.name: state.type for state in PRECEDENCE} | {AWAITING_RETRY.name: "SCHEDULED"}
"""The type of a flow run's state by its name: in the pool, what goes on is scheduled, and the worker submits it."""


def reconcile(
    seen: Sequence[Seen], jobs: Mapping[str, Job], accounted: Mapping[str, Job], limits: Limits = Limits()
) -> list[Action]:
    """The actions for this moment.

    `jobs` is SLURM's answer for all jobs of this user, `accounted` the accounting's for those that vanished from it.
    Without an answer from SLURM there is nothing to reconcile: do not call.
    """
    named = {job.name: job for job in jobs.values()}
    decisions = []
    for each in seen:
        try:
            decisions.append(_of_run(each, jobs, named, accounted, limits))
        except (TypeError, ValueError, KeyError, AttributeError) as error:  # anybody may have written its files
            LOG.warning("flow run %s: %s is not readable, and stays as it is: %r", each.run.id, each.run.folder, error)
    return [action for action in decisions if action is not None]


def _of_run(
    seen: Seen, jobs: Mapping[str, Job], named: Mapping[str, Job], accounted: Mapping[str, Job], limits: Limits
) -> Action | None:
    run = seen.run
    last = seen.submissions[-1] if seen.submissions else None
    if last is None or not last.live:
        return _without_job(seen, last, limits)
    if last.job_id is None:
        return _unanswered(seen, last, named, limits)
    job = jobs.get(last.job_id)
    if job is None or job.name != last.name:  # an id that a restarted controller forgot is given again
        job = accounted.get(last.job_id)
        if job is None or job.name != last.name or not diagnosis.accounted_end(job):
            lost_queue = job is not None and job.name == last.name and job.state in diagnosis.ENDS
            return _vanished(seen, last, limits, limits.lost_queue if lost_queue else limits.vanished)
    if job.state in diagnosis.ENDS:
        return _finish(seen, last, job, limits)
    asked_again = _asked_again(run, last)
    if run.type in ("CANCELLING", "CANCELLED") or (asked_again and last.cancelled):
        return Cancel(run, last)
    if asked_again:
        return Attach(run, last) if job.state != "COMPLETING" else None  # one that is ending is not what was asked for
    return _alive(run, job)


def _asked_again(run: Run, last: Submission) -> bool:
    """True where a person retried the run, and this job, which still lived, is not what that wish asked for.

    It is older than the run's present Pending state (one of our own name was set over one that asked for this job), or
    it was cancelled for a wish that no longer stands.
    """
    ours = run.name == "InfrastructurePending" or not last.state_id or run.state_id == last.state_id
    doomed = last.cancelled and run.type in ("PENDING", "RUNNING", "CRASHED")
    return doomed or (run.type == "PENDING" and not ours)


def _without_job(seen: Seen, last: Submission | None, limits: Limits) -> Action | None:
    """No job: none was submitted, or the newest one has ended."""
    run = seen.run
    end = last.end if last else None
    if last and end and run.type in OPEN and (run.type == "RUNNING" or run.state_id == end.over_state):
        return Finish(run, last, end, _state_after(run, end))  # the worker died between its journal and Prefect
    if run.type == "CANCELLING":
        return SetState(run, "CANCELLED", "Cancelled", end.message if end else "")
    if run.type == "PENDING" and seen.in_state_for > limits.unsubmitted:
        return SetState(run, "SCHEDULED", "AwaitingRetry", NOT_SUBMITTED, origin="put off")
    return None


def _unanswered(seen: Seen, last: Submission, named: Mapping[str, Job], limits: Limits) -> Action | None:
    """sbatch gave no answer, or its answer was lost with the worker."""
    if job := named.get(last.name):
        return Adopt(seen.run, last, job.id)
    if seen.attempt is not None and seen.attempt.get("slurm_job_id"):
        return Adopt(seen.run, last, str(seen.attempt["slurm_job_id"]))
    if seen.absent_for <= limits.submit_grace:
        return None
    return _ended(seen, last, NOT_TAKEN, _goes_on(seen.run))


def _vanished(seen: Seen, last: Submission, limits: Limits, patience: float) -> Action | None:
    """SLURM answers and does not know the job: what it wrote decides, or time and a heartbeat that stands still."""
    cancel_logged = seen.cancel_logged and not seen.heartbeat
    if seen.marker and not seen.heartbeat:  # whichever job finished the stage
        return _finish(seen, last, Job(last.job_id or "", last.name, "COMPLETED", "forgotten by SLURM"), limits)
    ended = cancel_logged or (seen.attempt is not None and seen.attempt.get("end_state"))
    if not ended and (seen.heartbeat or seen.absent_for <= patience):
        return None
    if ended:
        state = "CANCELLED" if cancel_logged else "FAILED"
        return _finish(seen, last, Job(last.job_id or "", last.name, state, "forgotten by SLURM"), limits)
    lost = Diagnosis(
        "warning",
        "lost",
        "SLURM no longer knows the job, and it left no end",
        f"job {last.job_id}, not known for {seen.absent_for:.0f} s",
        diagnosis.CONTINUES,
    )
    return _ended(seen, last, lost, _goes_on(seen.run))


def _goes_on(run: Run) -> Follows:
    """State that follows when the work could go on: it does, unless the run was cancelled."""
    return "Cancelled" if run.type in ("CANCELLING", "CANCELLED") else "AwaitingRetry"


def _alive(run: Run, job: Job) -> Action | None:
    """The state to show of a flow run whose job is queued or running; None when it is shown already."""
    if job.state in diagnosis.QUEUED:
        waiting = diagnosis.waiting(job.reason)
        message = f"job {job.id} {waiting.text}"
        if run.type == "RUNNING" or (run.type == "PENDING" and run.message != message):  # an operator requeued it, say
            return SetState(run, "PENDING", "InfrastructurePending", message, needs_person=waiting.needs_person)
    elif job.state in diagnosis.STARTED and run.type in ("PENDING", "CRASHED"):
        return SetState(run, "RUNNING", "Running", f"job {job.id} on {job.node}")
    return None


def _finish(seen: Seen, last: Submission, job: Job, limits: Limits) -> Action | None:
    """How a run ended: the attempt's record decides, then SLURM's state."""
    record = seen.attempt or {}
    end_state = record.get("end_state")
    where = f"job {job.id}" + (f" on {job.node}" if job.node else "")
    own = Diagnosis.read(record.get("diagnosis"))
    # a stage that is finished already leaves no record; exit code 0 alone is not believed
    if end_state == "finished" or (job.state == "COMPLETED" and not end_state and seen.marker):
        return _ended(seen, last, Diagnosis("info", "finished", f"{where} finished the stage"), "Completed")
    if stops(end_state):
        category = in_words(end_state or "")
        return _ended(
            seen, last, own or Diagnosis("error", cast("Category", category), f"{where} ended: {category}"), "Failed"
        )
    if job.state == "CANCELLED" or end_state == "interrupted" or seen.run.type in ("CANCELLING", "CANCELLED"):
        return _ended(seen, last, diagnosis.of_end(replace(job, state="CANCELLED", reason="")), "Cancelled")
    if _out_of_memory(seen, job, end_state):
        return _more_memory(seen, last, job)
    if job.state in ("DEADLINE", "REVOKED"):
        return _ended(seen, last, diagnosis.of_end(job), "Failed")
    if job.state in diagnosis.ON_THE_NODE:  # also when the stage saved before it: the node is what failed
        delay = 0.0 if job.state == "NODE_FAIL" else limits.crash_delay
        away = [job.node] if job.node else []
        return _ended(seen, last, diagnosis.of_end(job), "AwaitingRetry", delay, exclude=away)
    if end_state in END_STATES and END_STATES[end_state].state == AWAITING_RETRY:
        saved = Diagnosis("info", "time limit", f"{where} saved and stopped in time", "", diagnosis.CONTINUES)
        in_vain = own if own and own.category == "time limit" else None
        return _ended(seen, last, in_vain or saved, "AwaitingRetry")
    if end_state == "crashed":
        return _ended(seen, last, own or diagnosis.of_end(job), "AwaitingRetry", limits.crash_delay)
    if not record and job.state != "PREEMPTED":
        return _before_the_stage(seen, last, job, limits)
    delay = 0.0 if job.state in ("TIMEOUT", "PREEMPTED") else limits.crash_delay
    cause = _without_record_of_end(job, where)
    if job.state == "TIMEOUT" and not record.get("start_seconds"):
        cause = replace(cause, level="warning", summary=f"{cause.summary} before its first step", resolution=LONGER)
    return _ended(seen, last, cause, "AwaitingRetry", delay)


def _without_record_of_end(job: Job, where: str) -> Diagnosis:
    """Diagnosis of a job that left no record of its end, by its exit code; else what SLURM says."""
    if (job.state, job.exit_code) != ("FAILED", DISK_FULL):
        return diagnosis.of_end(job)
    advice = "Free space or raise the quota where the run directory lies: the next job goes on from what is saved."
    return Diagnosis("error", "disk full", "there was no room on the disk, not even for how it ended", where, advice)


def _out_of_memory(seen: Seen, job: Job, end_state: str | None) -> bool:
    killed = job.state == "FAILED" and end_state in (None, "crashed", "sigterm") and seen.memory_exceeded
    return job.state == "OUT_OF_MEMORY" or killed


def _more_memory(seen: Seen, last: Submission, job: Job) -> Action:
    """Once more with more memory, up to the cap; a second time it is the person's turn."""
    cause = diagnosis.of_end(replace(job, state="OUT_OF_MEMORY"))
    more = min(math.ceil(last.memory_gb * MEMORY_FACTOR), last.memory_cap_gb or math.inf)
    before = seen.submissions[-2].end if last.automatic and len(seen.submissions) > 1 else None
    if (before and before.memory_gb) or more <= last.memory_gb:  # memory_gb is handed on from end to end
        return _ended(seen, last, replace(cause, detail=f"{cause.detail}, {last.memory_gb:g} GB"), "Failed")
    cause = replace(
        cause, resolution=f"Nothing to do: the next job asks for {more:g} GB instead of {last.memory_gb:g}."
    )
    return _ended(seen, last, cause, "AwaitingRetry", memory_gb=more)


def _before_the_stage(seen: Seen, last: Submission, job: Job, limits: Limits) -> Action:
    """The job ended and left no attempt's record: its setup failed, or the node could not run it."""
    where = f"job {job.id} on {job.node}"
    exit_code = job.exit_code if job.state == "FAILED" else None
    if exit_code == SETUP_FAILED:
        advice = "Read the job's log; correct setup_lines in the site file, then retry the run."
        failed = Diagnosis("error", "environment", "the setup lines failed on the compute node", where, advice)
        return _ended(seen, last, failed, "Failed")
    if exit_code == BAD_INPUT:
        advice = "The end of the job's log names what and where; correct it, then start the study again."
        refused = Diagnosis("error", "bad input", "the stage could not begin", where, advice)
        return _ended(seen, last, refused, "Failed")
    if exit_code == HELD:
        held = Diagnosis("warning", "held", "another process is at work on this stage", where, CONTINUES_LATER)
        return _ended(seen, last, held, "AwaitingRetry", limits.held_delay)
    cause = _without_record_of_end(job, where)
    cause = replace(cause, summary=f"{cause.summary}, before the stage began")
    row = _row_before_the_stage(seen.submissions)
    if row >= BEFORE_THE_STAGE:
        is_known = cause.category in ("output folder", "disk full")
        advice = cause.resolution if is_known else "Read the job's log, then retry the run."
        advice = LONGER if job.state == "TIMEOUT" else advice
        cause = replace(cause, resolution=f"{row} jobs in a row ended so. {advice}")
        return _ended(seen, last, cause, "Failed", before_stage=True)
    return _ended(seen, last, cause, "AwaitingRetry", limits.crash_delay, before_stage=True)


def _row_before_the_stage(submissions: Sequence[Submission]) -> int:
    """How many jobs in a row ended before the stage, the newest included; a job that a person asked for begins it."""
    row = 1
    for later, earlier in zip(reversed(submissions), reversed(submissions[:-1]), strict=False):
        if not later.automatic or earlier.end is None or not earlier.end.before_stage:
            return row
        row += 1
    return row


def _ended(
    seen: Seen,
    submission: Submission,
    cause: Diagnosis,
    follows: Follows,
    delay_seconds: float = 0.0,
    memory_gb: float | None = None,
    exclude: Sequence[str] = (),
    before_stage: bool = False,
) -> Finish:
    """The end of a submission; its state is set in Prefect unless somebody set another one meanwhile.

    More memory and excluded nodes stay for all later jobs of the run. A run that a person retried before this end was
    seen goes on, whatever the end was: the retry is newer.
    """
    run = seen.run
    before = seen.submissions[-2].end if len(seen.submissions) > 1 else None
    end = End(
        follows,
        cause.text,
        cause,
        delay_seconds,
        memory_gb or (before.memory_gb if before else None),
        sorted({*exclude, *(before.exclude if before else [])}),
        run.state_id,
        follows != "Completed" and _asked_again(run, submission),
        before_stage,
    )
    return Finish(run, submission, end, _state_after(run, end) if run.type in OPEN else None)


def _state_after(run: Run, end: End) -> SetState:
    """The state of a flow run after an end of its job; a person's retry in the meantime stays that person's."""
    if end.again:
        return SetState(run, "SCHEDULED", "AwaitingRetry", ASKED_AGAIN, origin="person")
    return SetState(run, TYPES[end.follows], end.follows, end.message, end.delay_seconds)
