"""The next job of a run: what it is made of, which jobs it waits for, and its text."""

import hashlib
import time
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Literal

from deployments.slurm.cluster.site import Resources
from deployments.slurm.job.journal import End, Journal, Submission, newest_attempt
from deployments.slurm.job.script import JobText, sbatch_text
from storage import attempts
from tasks.stage.progress import least_minutes, too_short

Origin = Literal["automatic", "put off", "person"]
"""Ratchet itself asks for the job; or it only puts off what was asked for before; or, with no mark, a person asks."""


@dataclass(frozen=True)
class Plan:
    """Parts of which the next job of a run is made."""

    flow_run: str
    folder: Path
    """Folder of the journal, scripts and logs of the run's jobs; on a disk that all nodes share."""
    label: str
    """The beginning of the job's name."""
    command: list[str]
    directory: Path
    resources: Resources
    environment: dict[str, str] = field(default_factory=dict)
    automatic: bool = False
    """True where Ratchet itself asked for this job, and not a person (see `Origin`)."""
    state_id: str = ""
    """The flow run's present state, Pending: the one that asks for this job. Empty: retries of a run whose job still
    lives cannot be distinguished from its first start."""
    array_tasks: int | None = None
    """The run's first job may be a task of an array, of which so many run at once; None: it is a job of its own."""
    study_file: str = ""
    stage: str = ""
    """Study and stage: all tasks of an array are of the same."""
    comment: str = ""
    """Description of the job, in words: study, stage and cell."""


def preview(plan: Plan) -> str:
    """The text that `Pool.submit` would submit now."""
    journal = Journal(plan.folder)
    entries = journal.all()
    return sbatch_text(next_job(plan, journal, last_of(plan, entries), known_before(entries))[1])


def known_before(entries: list[Submission]) -> list[str]:
    """Ids of the jobs of these entries that may live, and of the newest one.

    None from before SLURM lost its jobs: it gives their numbers to others, to the next job itself at last.
    """
    since = [*takewhile(lambda each: not _forgotten(each.end), reversed(entries))]
    ids = [entry.job_id for entry in reversed(since) if entry.job_id and entry.live]
    newest = next((entry.job_id for entry in since if entry.job_id), None)
    return ids if newest is None or newest in ids else [*ids, newest]


def _forgotten(end: End | None) -> bool:
    return end is not None and end.diagnosis is not None and end.diagnosis.category == "lost"


def last_of(plan: Plan, entries: list[Submission]) -> Submission | None:
    """The newest of the entries that is of this flow run."""
    return next((entry for entry in reversed(entries) if entry.flow_run == plan.flow_run), None)


def next_job(plan: Plan, journal: Journal, last: Submission | None, after: list[str]) -> tuple[Submission, JobText]:
    """The entry of the run's next job, under a name that no other has, and what its text is made of; it waits for the
    jobs `after`."""
    number = journal.next_number()
    end = last.end if last else None
    asked = _asked_after(plan, end)
    entry = Submission(
        number,
        f"{plan.label}.{hashlib.sha256(str(plan.folder).encode()).hexdigest()[:6]}.{number}",
        plan.flow_run,
        time.time(),
        automatic=plan.automatic,
        memory_gb=asked.memory_gb,
        memory_cap_gb=asked.memory_cap_gb,
        cpus=asked.cpus,
        gpus=asked.gpus,
        time_limit_minutes=asked.time_limit_minutes,
        attempts_before=newest_attempt(plan.folder.parent),
        state_id=plan.state_id,
    )
    return entry, JobText(
        entry.name,
        plan.command,
        plan.directory,
        journal.log(entry),
        journal.log(entry).with_suffix(".stop"),
        asked,
        plan.environment,
        after,
        entry.automatic,
        _lead_seconds(asked, plan.folder.parent),
        plan.comment,
    )


def asked_now(plan: Plan) -> Resources:
    """Resources that the run's next job will ask for: after one that ran out of memory, more of it."""
    last = last_of(plan, Journal(plan.folder).all())
    return _asked_after(plan, last.end if last else None)


def _asked_after(plan: Plan, end: End | None) -> Resources:
    if end is None:
        return plan.resources
    more = {
        "memory_gb": max(plan.resources.memory_gb, end.memory_gb or 0),
        "exclude": sorted({*plan.resources.exclude, *end.exclude}),
    }
    return plan.resources.model_copy(update=more)


def continues(plan: Plan) -> bool:
    """True where Ratchet itself asked for this job after another one of the run ended."""
    last = last_of(plan, Journal(plan.folder).all())
    return plan.automatic and last is not None and last.end is not None


def time_problem(plan: Plan) -> str:
    """Why a job of this time limit would do no step, as far as attempts have shown; empty when nothing is known.

    Attempts in vain ask for a limit in which a step is certain. A person who asks learns it of the newest one; of the
    others two must say so, since a first start may be a slow one.
    """
    limit, lead = plan.resources.time_limit_minutes, _lead_seconds(plan.resources, plan.folder.parent)
    most = 2 if plan.automatic else 1
    newest = attempts.records(plan.folder.parent / "attempts")[-most:]
    problems = []
    for record in newest:
        start, step = float(record.get("start_seconds") or 0), float(record.get("step_seconds") or 0)
        in_vain = (record.get("diagnosis") or {}).get("category") == "time limit"
        if start and (least_minutes(start, step, lead) > limit if in_vain else start + lead > 60 * limit):
            problems.append(too_short(start, step * in_vain, lead, 60 * limit).text)
    return problems[-1] if len(problems) == most else ""


def _lead_seconds(asked: Resources, run_directory: Path) -> float:
    """The lead time asked for, and twice what a step and a save took in the newest attempt that measured them.

    The measured part never takes more than a third of the limit: a job signalled at its start would do nothing.
    """
    record = attempts.newest(run_directory / "attempts") or {}
    measured = 2 * (float(record.get("step_seconds") or 0) + float(record.get("save_seconds") or 0))
    return max(asked.lead_seconds, min(asked.lead_seconds + measured, 60 * asked.time_limit_minutes / 3))
