"""Job arrays: the first jobs of a study's stage that ask SLURM for the same are one array, where the site wants that.

A task is a job like any other from then on: its journal has it before it is submitted, under a name of its own; it is
adopted, cancelled, followed and diagnosed by its own id. Only its script and its log are found through the array's
folder, where `3.sbatch` and `3.log` lead to those of the stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deployments.slurm.cluster.client import task_id
from deployments.slurm.job.journal import Journal, Submission
from deployments.slurm.job.plan import Plan
from deployments.slurm.job.script import JobText, asked_for

TASKS_AT_MOST = 200
"""Of one array, where the cluster's MaxArraySize does not say less."""


@dataclass(frozen=True)
class First:
    """A run's first job, not submitted yet."""

    plan: Plan
    journal: Journal
    entry: Submission
    job: JobText


@dataclass(frozen=True)
class Submitted:
    """What stands in the journal, and is about to be submitted."""

    plan: Plan
    journal: Journal
    entry: Submission
    task: int | None = None
    """Its number in an array; None: it is a job of its own."""

    def id_in(self, job_id: str) -> str:
        """Its id, when sbatch printed `job_id`."""
        return job_id if self.task is None else task_id(job_id, self.task)


def groups(firsts: Iterable[First], tasks_at_most: int) -> list[list[First]]:
    """Those that can be one array together: who ends one means a stage of one study. One alone is a job of its own."""
    alike: dict[tuple[object, ...], list[First]] = {}
    for first in firsts:
        plan = first.plan
        alike.setdefault((plan.study_file, plan.stage, plan.array_tasks, asked_for(first.job)), []).append(first)
    return [
        some[begin : begin + tasks_at_most] for some in alike.values() for begin in range(0, len(some), tasks_at_most)
    ]


def array_name(group: list[First]) -> str:
    """`<study>-<stage>`, with the ending of the first one's name, which no other job has."""
    plan = group[0].plan
    study = Path(plan.study_file).parent.parent.name
    return f"{study}-{plan.stage}{group[0].entry.name.removeprefix(plan.label)}"


def lead_to(folder: Path, task: int, script: Path, log: Path) -> None:
    """Has the task's script and its log found in the array's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for link, file in ((folder / f"{task}.sbatch", script), (folder / f"{task}.log", log)):
        link.unlink(missing_ok=True)
        link.symlink_to(file)
