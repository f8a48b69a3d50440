"""Submissions for the pool's runs: written into the journal first, one job of a run at a time.

The first jobs of a study's stage that ask SLURM for the same are one job array, where the site wants that: they are
gathered, and submitted together at a later poll. A task is a job like any other from then on: its journal has it
before it is submitted, under a name of its own; it is adopted, cancelled, followed and diagnosed by its own id. Only
its script and its log are found through the array's folder, where `3.sbatch` and `3.log` lead to those of the stage.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from deployments.slurm.cluster.client import NoArray, NotNow, Refused, SlurmCommands, Unreachable, task_id, task_name
from deployments.slurm.job.journal import End, Journal, Submission
from deployments.slurm.job.plan import Plan, known_before, last_of, next_job
from deployments.slurm.job.script import JobText, array_text, asked_for, sbatch_text
from deployments.slurm.pool.reconcile import Limits
from storage import durable
from storage.inside import refuse_links
from tasks.stage.outcome import Diagnosis, Follows

LOG = logging.getLogger("ratchet.slurm")
TASKS_AT_MOST = 200
"""Maximum for one array, where the cluster's MaxArraySize does not say less."""


@dataclass(frozen=True)
class Next:
    """A run's next job: its entry and what its text is made of."""

    plan: Plan
    journal: Journal
    entry: Submission
    job: JobText
    task: int | None = None
    """Its number in an array; None: it is a job of its own."""

    def as_task(self, task: int, array: str) -> Next:
        """The same as a task of an array of this name."""
        name = task_name(array, task)
        return replace(self, entry=replace(self.entry, name=name), job=replace(self.job, name=name), task=task)

    def id_in(self, job_id: str) -> str:
        """Its id, when sbatch printed `job_id`."""
        return job_id if self.task is None else task_id(job_id, self.task)


def groups(firsts: Iterable[Next], tasks_at_most: int) -> list[list[Next]]:
    """Runs that can be one array: who ends it means a stage of one study. A single run is a job of its own."""
    alike: dict[tuple[object, ...], list[Next]] = {}
    for first in firsts:
        plan = first.plan
        alike.setdefault((plan.study_file, plan.stage, plan.array_tasks, asked_for(first.job)), []).append(first)
    return [
        some[begin : begin + tasks_at_most] for some in alike.values() for begin in range(0, len(some), tasks_at_most)
    ]


def array_name(group: list[Next]) -> str:
    """`<study>-<stage>`, with the ending of the first one's name, which no other job has."""
    plan = group[0].plan
    study = Path(plan.study_file).parent.parent.name
    return f"{study}-{plan.stage}{group[0].entry.name.removeprefix(plan.label)}"


def lead_to(folder: Path, task: int, planned: Next) -> None:
    """Has the task's script and its log found in the array's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    script, log = planned.journal.script(planned.entry), planned.journal.log(planned.entry)
    for link, file in ((folder / f"{task}.sbatch", script), (folder / f"{task}.log", log)):
        link.unlink(missing_ok=True)
        link.symlink_to(file)


class Submissions:
    """All submissions below one root."""

    def __init__(
        self, slurm: SlurmCommands, limits: Limits, clock: Callable[[], float], ours: Callable[[], bool], arrays: Path
    ) -> None:
        """Takes what `Pool` takes."""
        self._slurm, self._limits, self._clock, self._ours, self._arrays = slurm, limits, clock, ours, arrays
        self.live: dict[str, Submission] = {}
        """The newest submission of each run whose job may still live, by run id."""
        self._journals: dict[Path, Journal] = {}
        self._gathered: dict[str, Plan] = {}
        """Plans whose first jobs are submitted as arrays at the next poll, by run id."""
        self._tasks_at_most: int | None = None
        """Maximum for one array, asked once; 1 where this cluster takes no array of ours."""
        self._sought: dict[str, float] = {}

    def submit(self, plan: Plan) -> str | None:
        """Submits the run's next job unless one of its jobs may still live; the job's id if it is known.

        None: SLURM gave no answer; `poll` finds the job by its name, or has it submitted again. Or the job is one for
        an array, which the next `poll` submits. Raises Refused, also when there is no job that could be submitted.
        """
        journal = self.journal(plan.folder)
        try:
            entries = journal.all()
            last = last_of(plan, entries)
            if last and last.live:
                return last.job_id
            after = self._jobs_before(entries)
        except (OSError, Unreachable) as error:
            LOG.warning("%s: not submitted now: %s", plan.flow_run, error)
            return None
        try:
            planned = Next(plan, journal, *next_job(plan, journal, last, after))
            text = sbatch_text(planned.job)
            if not self._ours():
                return None
            if plan.array_tasks and not entries:
                self._gathered[plan.flow_run] = plan
                return None
            self._write(planned, text)
        except (OSError, ValueError) as error:
            cause = Diagnosis("error", "not submitted", f"there is no job to submit: {error}", str(plan.folder))
            raise Refused(cause.text) from error
        return self._submitted([planned], text, last.end if last else None)

    def _write(self, planned: Next, text: str) -> None:
        """Keeps script and entry before SLURM hears of them."""
        refuse_links(planned.plan.folder.parent)
        planned.plan.folder.mkdir(parents=True, exist_ok=True)  # a job whose log cannot be opened ends without a trace
        durable.write_bytes(planned.journal.script(planned.entry), text.encode())
        self.live[planned.plan.flow_run] = planned.journal.write(planned.entry)

    def _submitted(self, those: list[Next], text: str, before: End | None = None) -> str | None:
        """Submits what stands in the journal; the id of the job, or of the array, when SLURM gives it."""
        if not self._ours():
            return None
        try:
            job_id = self._slurm.submit(text)
        except Refused as error:
            if isinstance(error, NoArray):
                self._tasks_at_most = 1
            refusals = [self._note_refusal(planned, error, before) for planned in those]
            if refusals[0].follows == "AwaitingRetry":
                return None
            raise Refused(refusals[0].message) from None
        except Unreachable as error:
            name = those[0].entry.name
            LOG.warning("%s: SLURM gave no answer (%s); it is searched for by its name first", name, error)
            return None
        for planned in those:
            self._note_job(planned, planned.id_in(job_id))
        return job_id

    def _note_job(self, planned: Next, job_id: str) -> None:
        name = planned.entry.name
        try:
            self.live[planned.plan.flow_run] = planned.journal.note_job(planned.entry, job_id)
        except OSError as error:
            LOG.warning("%s: job %s could not be noted (%s); it is searched for by its name", name, job_id, error)

    def _note_refusal(self, planned: Next, error: Refused, before: End | None) -> End:
        refused = self._refused(error, planned.journal.script(planned.entry), before)
        end = replace(refused, over_state=planned.plan.state_id)
        planned.journal.note_end(planned.entry, end)
        self.live.pop(planned.plan.flow_run, None)
        return end

    @property
    def gathered(self) -> list[Plan]:
        """Plans whose first jobs wait for each other."""
        return list(self._gathered.values())

    def submit_gathered(self, plans: list[Plan]) -> None:
        """Submits the first jobs of these runs, as arrays of those that ask for the same."""
        if plans and self._ours():
            for group in groups(self._firsts(plans), self._largest_array()):
                self._submit_group(group)
            self.ungather(plans)

    def _largest_array(self) -> int:
        if self._tasks_at_most is None:
            try:
                self._tasks_at_most = max(1, min(TASKS_AT_MOST, self._slurm.largest_array()))
            except Unreachable as error:
                LOG.warning("SLURM does not say how large an array may be: %s", error)
        return self._tasks_at_most or TASKS_AT_MOST

    def ungather(self, plans: Iterable[Plan]) -> None:
        """Lets these wait no longer."""
        for plan in plans:
            if self._gathered.get(plan.flow_run) is plan:  # and not a later one of the same run
                del self._gathered[plan.flow_run]

    def _firsts(self, plans: list[Plan]) -> Iterator[Next]:
        """The first jobs of these runs. One whose folder has a job by now stays Pending, and is asked for again."""
        for folder, plan in {plan.folder: plan for plan in plans}.items():
            journal = self.journal(folder)
            try:
                if not journal.all():
                    yield Next(plan, journal, *next_job(plan, journal, None, []))
            except OSError as error:
                LOG.warning("%s: not submitted now: %s", plan.flow_run, error)

    def _submit_group(self, group: list[Next]) -> None:
        """Submits one array, or one job of its own. A run whose job cannot be written stays Pending, and is asked for
        again."""
        name, those = array_name(group), list[Next]()
        folder = self._arrays / name
        for task, planned in enumerate(group, 1):  # a number that was written once is no other job's
            try:
                if len(group) > 1:
                    planned = planned.as_task(task, name)
                    lead_to(folder, task, planned)
                self._write(planned, sbatch_text(planned.job))
            except OSError as error:
                LOG.warning("%s: not submitted now: %s", planned.plan.flow_run, error)
            else:
                those.append(planned)
        if those:
            jobs = {planned.task: planned.job for planned in those if planned.task is not None}
            text = array_text(name, folder, jobs, group[0].plan.array_tasks or 1) if jobs else sbatch_text(those[0].job)
            with suppress(Refused):  # the journal has it: the next poll sets the run's state
                self._submitted(those, text)

    def _refused(self, error: Refused, script: Path, before: End | None) -> End:
        """End that follows a refusal: one that time or other nodes mend does not fail the run."""
        cause = Diagnosis(
            "error",
            "refused",
            f"SLURM refused the job: {error}",
            str(script),
            "Correct the site file or the deployment and retry the run; or the study, and start it again.",
        )
        follows: Follows = "Failed"
        memory, exclude, delay = (before.memory_gb, before.exclude, 0.0) if before else (None, [], 0.0)
        if isinstance(error, NoArray):
            advice = "Nothing to do: each stage is submitted as a job of its own."
            cause = replace(cause, level="warning", resolution=advice)
            follows = "AwaitingRetry"
        elif isinstance(error, NotNow):
            advice = f"Nothing to do: it is tried again every {self._limits.not_now_delay / 60:g} minutes."
            cause = replace(cause, level="warning", category="not now", resolution=advice)
            follows, delay = "AwaitingRetry", self._limits.not_now_delay
        elif exclude:  # perhaps the nodes that failed are all that there are
            advice = f"Nothing to do: {', '.join(exclude)} may be used again."
            cause = replace(cause, level="warning", resolution=advice)
            follows, exclude = "AwaitingRetry", []
        return End(follows, cause.text, cause, delay, memory, exclude)

    def _jobs_before(self, entries: list[Submission]) -> list[str]:
        """The jobs of this folder, of whatever flow run, that may live; the next one waits until they have ended.

        Raises Unreachable while there may be one whose id only SLURM knows.
        """
        known = known_before(entries)
        for entry in entries:
            if entry.live and entry.job_id is None:
                named = [job.id for job in self._slurm.jobs().values() if job.name == entry.name]
                now = self._clock()
                if not named and now - self._sought.setdefault(entry.name, now) <= self._limits.submit_grace:
                    raise Unreachable(f"{entry.name} may have been queued before it")
                known += named
        return known

    def journal(self, folder: Path) -> Journal:
        """The journal of a folder, kept in memory until it is forgotten."""
        if folder not in self._journals:  # another host may have served the pool until a moment ago
            durable.refresh(folder)
        return self._journals.setdefault(folder, Journal(folder))

    def forget(self, but: set[Path]) -> list[Path]:
        """Drops the journals of all folders but these; which they were."""
        gone = [folder for folder in self._journals if folder not in but]
        for folder in gone:
            self._journals.pop(folder, None)
        return gone
