"""What the pool costs: calls of SLURM and memory at many live jobs, submissions a second, and how late Prefect knows.

    python -m tests.benchmarks.slurm --jobs 1000        many jobs at once: sleeping ones, without Prefect
    python -m tests.benchmarks.slurm --stages 5         one after the other, with Prefect, beside plain sbatch

Both start a real SLURM cluster of their own (see tests/slurm/cluster.sh) and end it.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import pytest
from rich.console import Console

from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.resources import Resources
from deployments.slurm.job.plan import Plan
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Run, SetState
from deployments.slurm.pool.worker import interval_seconds
from deployments.slurm.study.study import SOURCES
from storage import attempts
from tests.benchmarks import language
from tests.slurm.harness import Bench, Cluster, Dispatched, Server, kept_study
from tests.slurm.harness import Run as FlowRun

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
    """Queues `count` jobs through the pool and polls them as the worker does."""
    cluster = Cluster()
    os.environ.update(cluster.environment)
    try:
        _many_jobs(count, folder)
    finally:
        cluster.wipe()


def _many_jobs(count: int, folder: Path) -> None:
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
    polls = []
    slurm.calls.clear()
    for _ in range(5):
        began = time.monotonic()
        pool.poll()
        polls.append(time.monotonic() - began)
    calls = sum(slurm.calls.values()) / len(polls)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    interval = interval_seconds(len(pool.live))
    OUT.print(f"live jobs: {len(pool.live):,}; a poll every {interval:.0f} s")
    OUT.print(f"calls of SLURM a minute: {calls * 60 / (interval + statistics.median(polls)):.1f} {slurm.calls}")
    OUT.print(f"one poll: {statistics.median(polls):.2f} s (without Prefect)")
    OUT.print(f"submissions a second: {submitted:.1f}; plain sbatch {plain:.1f}; ratio {submitted / plain:.2f}")
    OUT.print(f"memory: {grown / 1024:.0f} MiB more than before the first job")


def overhead(stages: int, folder: Path) -> None:
    """One stage after the other, each through the pool and by plain sbatch of the same script: seconds until its end.

    The pool's begin with the study's start (its preflight, Prefect's flow run, the worker's next poll), plain sbatch's
    with the command.
    """
    with at_hand(folder) as bench:
        plain, work, told = [], [], []
        for number in range(stages):
            began = time.time()
            one = bench.dispatch(folder / f"pool-{number}")
            one.run.wait("Completed", seconds=120)
            told.append(state_at(one.run, "Completed") - began)
            work.append(one.record()["ended_at"] - began)
            plain.append(by_plain_sbatch(bench, one, folder / f"plain-{number}"))
        ready = [one.submissions()[0].submitted_at - state_at(one.run, "Scheduled") for one in bench.dispatched]
        late = [state_at(one.run, "Completed") - one.record()["ended_at"] for one in bench.dispatched]
    for said, seconds in (
        ("plain sbatch, to the end of the work", plain),
        ("pool, to the end of the work", work),
        ("pool, until Prefect says Completed", told),
        ("of these: stage ready to submitted", ready),
        ("of these: end of the work to Prefect's state", late),
    ):
        OUT.print(f"{said}: {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})")


@contextmanager
def at_hand(folder: Path) -> Iterator[Bench]:
    """Cluster, server and worker, as the tests on real SLURM have them."""
    with ExitStack() as ends:
        cluster, server = Cluster(), Server(folder)
        ends.callback(cluster.wipe)
        server.start()
        ends.callback(server.kill)
        bench = Bench(cluster, server.address, folder / "bench")
        bench.deploy()
        ends.callback(bench.stop_workers)
        ends.enter_context(bench.at_hand(ends.enter_context(pytest.MonkeyPatch.context())))
        bench.ensure_worker()
        yield bench


def by_plain_sbatch(bench: Bench, one: Dispatched, root: Path) -> float:
    """Seconds that the same job takes in another root when somebody submits its script by hand."""
    kept_study(root, one.study)
    script = (one.folder / "jobs" / "0001.sbatch").read_text().replace(str(one.root), str(root))
    run_directory = root / one.folder.relative_to(one.root)
    (run_directory / "jobs").mkdir(parents=True)
    (root / SOURCES).symlink_to(one.root / SOURCES)
    began = time.time()
    subprocess.run(["sbatch"], input=script, text=True, check=True, capture_output=True)
    return (
        bench.until("it has ended", lambda: (attempts.newest(run_directory / "attempts") or {}).get("ended_at"), 120)
        - began
    )


def state_at(run: FlowRun, name: str) -> float:
    """When a flow run first had the state."""
    states = run.bench.api("GET", f"/flow_run_states/?flow_run_id={run.id}")
    return min(datetime.fromisoformat(state["timestamp"]).timestamp() for state in states if state["name"] == name)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = options.add_mutually_exclusive_group(required=True)
    what.add_argument("--jobs", type=int, help="queue so many jobs at once")
    what.add_argument("--stages", type=int, help="run so many stages, one after the other")
    given = options.parse_args()
    OUT.print(language.machine())
    with tempfile.TemporaryDirectory() as made:
        if given.stages:
            overhead(given.stages, Path(made))
        else:
            many_jobs(given.jobs, Path(made))
