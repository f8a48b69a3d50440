"""What the engine costs: calls of SLURM and memory at many live jobs, submissions a second, one stage beside sbatch.

    python -m benchmarks.slurm --jobs 1000        many jobs at once: sleeping ones
    python -m benchmarks.slurm --stages 5         one after the other, beside plain sbatch

Both start a real SLURM cluster of their own (see tests/slurm/cluster.sh) and end it.
"""

import argparse
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from rich.console import Console

from benchmarks import language
from deployments.dag.sources import KEPT
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Resources
from deployments.slurm.job.plan import Plan
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Run, SetState
from deployments.slurm.pool.service import interval_seconds
from storage import attempts
from tests.slurm.harness import Bench, Cluster, Dispatched, kept_study

OUT = Console(highlight=False, soft_wrap=True)
PLAIN = 50
PLACES = 8
WATCHED_SECONDS = 120
PEAK = r"VmHWM:\s+(\d+)"


class Remembered:
    """Records of runs in this process."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}

    def watched(self, also: Iterable[str]) -> list[Run]:
        return list(self.runs.values())

    def set_state(self, wish: SetState) -> bool:
        self.runs[wish.run.id] = Run(
            wish.run.id, str(uuid4()), wish.type, wish.name, wish.message, self.runs[wish.run.id].folder
        )
        return True


def many_jobs(count: int, folder: Path) -> None:
    """Queues `count` jobs through the pool and polls them as who serves does."""
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
    OUT.print(f"one poll: {statistics.median(polls):.2f} s")
    OUT.print(f"submissions a second: {submitted:.1f}; plain sbatch {plain:.1f}; ratio {submitted / plain:.2f}")
    OUT.print(f"memory: {grown / 1024:.0f} MiB more than before the first job")


def overhead(stages: int, folder: Path) -> None:
    """One stage after the other, each by the engine and by plain sbatch of the same script: seconds until its end.

    Ours begin with the study's start, its preflight too, plain sbatch's with the command.
    """
    with at_hand(folder) as bench:
        plain, work, told = [], [], []
        for number in range(stages):
            began = time.time()
            one = bench.dispatch(folder / f"ours-{number}")
            one.run.wait("Completed", seconds=120)
            told.append(time.time() - began)
            work.append(one.record()["ended_at"] - began)
            plain.append(by_plain_sbatch(bench, one, folder / f"plain-{number}"))
    for said, seconds in (
        ("plain sbatch, to the end of the work", plain),
        ("ours, to the end of the work", work),
        ("ours, until its end is seen", told),
    ):
        OUT.print(f"{said}: {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f})")


@contextmanager
def at_hand(folder: Path) -> Iterator[Bench]:
    """Cluster and who serves it, as the tests on real SLURM have them."""
    with ExitStack() as ends:
        cluster = Cluster()
        ends.callback(cluster.wipe)
        bench = Bench(cluster, "", folder / "bench")
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
    (root / KEPT).symlink_to(one.root / KEPT)
    began = time.time()
    subprocess.run(["sbatch"], input=script, text=True, check=True, capture_output=True)
    return (
        bench.until("it has ended", lambda: (attempts.newest(run_directory / "attempts") or {}).get("ended_at"), 120)
        - began
    )


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
