"""What the pool costs: calls of SLURM and memory at many live jobs, submissions a second, and how late Prefect knows.

    eval "$(tests/slurm/cluster.sh env)"; python -m tests.benchmarks.slurm --jobs 1000
    python -m tests.benchmarks.slurm --study ROOT/STUDY        of a study that ran through the pools

The first needs a cluster on which nothing else of yours runs: it queues sleeping jobs, and cancels them in the end.
The second reads journals, attempts and Prefect's states (PREFECT_API_URL).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID, uuid4

from rich.console import Console

from deployments.slurm.client import SlurmCommands
from deployments.slurm.job import Plan
from deployments.slurm.journal import Journal
from deployments.slurm.pool import Pool
from deployments.slurm.reconcile import Run, SetState
from deployments.slurm.resources import Resources
from deployments.slurm.worker import interval_seconds
from storage import durable

OUT = Console(highlight=False, soft_wrap=True)
PLAIN = 50


class Remembered:
    """Flow runs in this process: what is measured is ours and SLURM's share, not Prefect's."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}

    def watched(self, also: Iterable[str]) -> list[Run]:
        return list(self.runs.values())

    def set_state(self, wish: SetState) -> bool:
        self.runs[wish.run.id] = Run(
            wish.run.id, str(uuid4()), wish.type, wish.name, wish.message, self.runs[wish.run.id].folder
        )
        return True

    def set_job(self, run_id: str, job_id: str) -> None:
        pass


def many_jobs(count: int, folder: Path) -> None:
    """Queues `count` jobs through the pool and looks at them as the worker does."""
    runs, slurm = Remembered(), SlurmCommands()
    pool = Pool(slurm, runs)
    began = time.monotonic()
    for _ in range(PLAIN):
        subprocess.run(
            ["sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", "true"], check=True, capture_output=True
        )
    plain = PLAIN / (time.monotonic() - began)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    for number in range(count):
        run, jobs = str(uuid4()), folder / str(number) / "jobs"
        runs.runs[run] = Run(run, str(uuid4()), "PENDING", "Pending", "", str(jobs))
        asked = Resources(memory_gb=0.1, time_limit_minutes=5, cpus=8)
        pool.submit(Plan(run, jobs, "bench", ["sleep", "300"], folder, asked))
    submitted = count / (time.monotonic() - began)
    looks = []
    slurm.calls.clear()
    for _ in range(5):
        began = time.monotonic()
        pool.round()
        looks.append(time.monotonic() - began)
    calls = sum(slurm.calls.values()) / len(looks)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    interval = interval_seconds(len(pool.live))
    OUT.print(f"live jobs: {len(pool.live):,}; a look every {interval:.0f} s")
    OUT.print(f"calls of SLURM a minute: {calls * 60 / (interval + statistics.median(looks)):.1f} {slurm.calls}")
    OUT.print(f"one look: {statistics.median(looks):.2f} s (without Prefect)")
    OUT.print(f"submissions a second: {submitted:.1f}; plain sbatch {plain:.1f}; ratio {submitted / plain:.2f}")
    OUT.print(f"memory: {grown / 1024:.0f} MiB more than before the first job")
    subprocess.run(["scancel", "--me"], check=True)


def lateness(study: Path) -> None:
    """Median seconds between what happened on disk and what Prefect was told, over all jobs of a study."""
    from prefect.client.orchestration import get_client

    ready, told, ran = [], [], []
    with get_client(sync_client=True) as client:
        for folder in study.glob("*/*/jobs"):
            records = [durable.read_json(file) for file in sorted((folder.parent / "attempts").glob("[0-9]*.json"))]
            by_job = {record.get("slurm_job_name"): record for record in records}
            for entry in Journal(folder).all():
                record, states = by_job.get(entry.name), client.read_flow_run_states(UUID(entry.flow_run))
                scheduled = [s.timestamp.timestamp() for s in states if s.type.value == "SCHEDULED"]
                ready += [entry.submitted_at - max(at for at in scheduled if at < entry.submitted_at)]
                if record and record.get("ended_at") and entry.end:
                    after = [s.timestamp.timestamp() for s in states if s.name == entry.end.follows]
                    told += [min((at - record["ended_at"] for at in after if at > record["ended_at"]), default=0.0)]
                    ran += [record["ended_at"] - record["started_at"]]
    OUT.print(f"jobs: {len(ready)}, ran {statistics.median(ran):.1f} s (medians here and below)")
    OUT.print(f"stage ready to submitted: {statistics.median(ready):.1f} s")
    OUT.print(f"end of the work to Prefect's state: {statistics.median(told):.1f} s")


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=1000)
    options.add_argument("--study", type=Path)
    given = options.parse_args()
    if given.study:
        lateness(given.study)
    else:
        with tempfile.TemporaryDirectory() as made:
            many_jobs(given.jobs, Path(made))
