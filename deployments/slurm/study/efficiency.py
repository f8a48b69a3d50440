"""Cost of a study's jobs, and what of it was used: from the journals and the attempts' records.

A job that was killed could not write down what it had used; the accounting knows it, where there is one.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from deployments.dag.walk import Handle
from deployments.slurm.cluster.client import Used
from deployments.slurm.job.journal import Journal, Submission, jobs_folder
from storage import attempts
from storage.rows import rows_of
from storage.run_directory import RunDirectory
from tasks.findings.table import markdown_table
from tasks.stage.progress import duration

Accounting = Callable[[Sequence[str]], Mapping[str, Used]]
"""Resources that jobs used, by id, as far as SLURM knows."""
LITTLE = 0.5
"""A share of what was asked, below which asking for less is suggested."""
MUCH_LOST = 0.05


@dataclass(frozen=True)
class Use:
    """One stage: times in seconds, memory in GB (1024 MB, as sbatch counts), shares of what was asked.

    Until its first line of Python a job counts as queued.
    """

    jobs: int
    queued: float
    ran: float
    gpu_hours: float
    steps: int
    lost_steps: int
    cpu_share: float | None
    memory_gb: float | None
    longest: float
    on_gpu: bool
    asked: Submission

    @property
    def suggestion(self) -> str:
        """Advice on what to ask for next time; empty when nothing stands out."""
        asked, less = self.asked, []
        if asked.gpus and not self.on_gpu:
            less.append("gpus: 0")
        if self.memory_gb is not None and self.memory_gb < LITTLE * asked.memory_gb:
            less += _less("memory_gb", math.ceil(1.5 * self.memory_gb), asked.memory_gb)
        if self.cpu_share is not None and self.cpu_share < LITTLE:
            less += _less("cpus", math.ceil(1.2 * self.cpu_share * asked.cpus), asked.cpus)
        if self.longest < LITTLE * 60 * asked.time_limit_minutes and asked.end and asked.end.follows == "Completed":
            less += _less("time_limit_minutes", 10 * math.ceil(2 * self.longest / 600), asked.time_limit_minutes)
        if self.steps and self.lost_steps > MUCH_LOST * self.steps:
            less.append("a shorter execution.checkpoint_every_seconds")
        return ", ".join(less)


def use_of(run: RunDirectory, accounting: Accounting = lambda ids: {}) -> Use | None:
    """Resources that the stage's jobs used; None when it had none."""
    entries = Journal(jobs_folder(run)).all()
    if not entries:
        return None
    records = attempts.records(run.attempts)
    by_job = {record.get("slurm_job_name"): record for record in records}
    measured = {name for name, record in by_job.items() if record.get("cpu_seconds") is not None}
    killed = accounting([entry.job_id for entry in entries if entry.job_id and entry.name not in measured]).values()
    accounted = {used.name: used for used in killed}  # ids begin anew with a cluster's database, names do not
    queued = ran = gpu_hours = cpu = cpu_asked = longest = 0.0
    memory: list[float] = []
    for entry in entries:
        if used := accounted.get(entry.name):
            memory.append(used.peak_memory_bytes / 2**30)
        if (record := by_job.get(entry.name)) is None:
            queued += max(0.0, entry.ended_at - entry.submitted_at)  # cancelled while it was queued, say
            continue
        began = float(record["started_at"])
        ended = float(record.get("ended_at") or entry.ended_at or began)
        queued += max(0.0, began - entry.submitted_at)
        ran += max(0.0, ended - began)
        longest = max(longest, ended - began)
        gpu_hours += entry.gpus * max(0.0, ended - began) / 3600
        if record.get("cpu_seconds") is not None:
            cpu += float(record["cpu_seconds"])
            cpu_asked += entry.cpus * (ended - began)
            memory.append(float(record["peak_memory_bytes"]) / 2**30)
        elif used:
            cpu += used.cpu_seconds
            cpu_asked += entry.cpus * (ended - began)
    steps = [row["step"] for row in rows_of(run.timing_file)]  # one for each time that it was computed
    return Use(
        sum(entry.job_id is not None for entry in entries),
        queued,
        ran,
        gpu_hours,
        len(set(steps)),
        len(steps) - len(set(steps)),
        cpu / cpu_asked if cpu_asked else None,
        max(memory) if memory else None,
        longest,
        any((record.get("numerics") or {}).get("device") != "cpu" for record in records) or not records,
        entries[-1],
    )


def table(handles: Sequence[Handle], accounting: Accounting = lambda ids: {}) -> str:
    """The uses of a study's stages as a Markdown table with their sum; empty when no stage had a job."""
    used = [(handle.label, use) for handle in handles if (use := use_of(handle.run, accounting)) is not None]
    uses = [use for _, use in used]
    if not uses:
        return ""
    header = ["stage", "jobs", "queued", "ran", "GPU hours", "steps lost", "CPU used", "memory used", "ask for"]
    rows = [[label, *_costs([use]), *_shares(use), use.suggestion] for label, use in used]
    return markdown_table(header, [*rows, ["all", *_costs(uses), "", "", ""]])


def _costs(uses: Sequence[Use]) -> list[str]:
    """Costs per step only where steps were counted: a script's are not."""
    steps, lost = sum(use.steps for use in uses), sum(use.lost_steps for use in uses)
    return [
        str(sum(use.jobs for use in uses)),
        duration(sum(use.queued for use in uses)),
        duration(sum(use.ran for use in uses)),
        f"{sum(use.gpu_hours for use in uses):.2f}",
        f"{lost:,} of {steps:,}" if steps else "-",
    ]


def _shares(use: Use) -> list[str]:
    """Shares used of the processors and of the memory that were asked for."""
    of_asked = f" of {use.asked.memory_gb:g}" if use.asked.memory_gb else ""
    return [
        "" if use.cpu_share is None else f"{use.cpu_share:.0%} of {use.asked.cpus}",
        "" if use.memory_gb is None else f"{use.memory_gb:.1f}{of_asked} GB",
    ]


def _less(name: str, enough: float, asked: float) -> list[str]:
    return [f"{name}: {max(1, enough):g}"] if max(1, enough) < asked else []
