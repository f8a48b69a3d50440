"""What the pool costs: calls of SLURM and memory at many live jobs, submissions a second, and how late Prefect knows.

    python -m benchmarks.slurm --jobs 1000        many jobs at once: sleeping ones, without Prefect
    python -m benchmarks.slurm --stages 5         one after the other, with Prefect, beside plain sbatch
    python -m benchmarks.slurm --waiting 300      many ready at once, with Prefect, beside plain sbatch
                                                        (--postgres: its server on PostgreSQL)

All start a real SLURM cluster of their own (see tests/slurm/cluster.sh) and end it.
"""

import argparse
import itertools
import os
import re
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import yaml
from rich.console import Console

from benchmarks import cells, language
from deployments.dag.page import load_page
from deployments.dag.sources import KEPT
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Resources
from deployments.slurm.job.journal import Journal, Submission, jobs_folder
from deployments.slurm.job.plan import Plan
from deployments.slurm.pool.pool import Pool
from deployments.slurm.pool.reconcile import Run, SetState
from deployments.slurm.pool.worker import interval_seconds
from deployments.slurm.study.follow import Follower
from deployments.slurm.study.standings import Standings
from deployments.slurm.study.study import SlurmStudy
from storage import attempts
from tests.slurm.harness import Bench, Cluster, Dispatched, Server, kept_study
from tests.slurm.harness import Run as FlowRun
from tests.slurm.postgres import postgres

OUT = Console(highlight=False, soft_wrap=True)
PLAIN = 50
PLACES = 8
WATCHED_SECONDS = 120
PEAK = r"VmHWM:\s+(\d+)"


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
    with at_hand(folder) as (bench, _):
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


def many_waiting(count: int, folder: Path, database: str, array_tasks: int | None) -> None:
    """So many stages that are ready at once: queued all of them, and then with few places."""
    with at_hand(folder, database, PREFECT_WORKER_QUERY_SECONDS="10") as (bench, server):  # Prefect's default
        bench.site.write_text(yaml.safe_dump(yaml.safe_load(bench.site.read_text()) | {"array_tasks": array_tasks}))
        _all_queued(count, folder / "queued", bench)
        for process in (bench.workers["gpu"], server):
            OUT.print(f"memory of the {type(process).__name__.lower()} at its peak: {_peak(process.pid)}")
        bench.put_right()
        _with_places(count, folder / "places", bench)
        _plain_chains(bench)


def _all_queued(count: int, root: Path, bench: Bench) -> None:
    """None of the jobs starts: what submitting and watching cost."""
    bench.cluster.hold()
    bench.cluster.slurm("sdiag", "--reset")
    began = time.time()
    found = _start(count, 0.0, root)
    OUT.print(f"start of {count} stages: {time.time() - began:.1f} s, with the worker beside it")
    journals = [Journal(jobs_folder(handle.run)) for handle in found.handles[:count]]
    entries = bench.until("all are queued", lambda: _submitted(journals, count), 3600)
    made = {run["id"]: run["created"] for run in _flow_runs(bench)}
    waited = [one.submitted_at - datetime.fromisoformat(made[one.flow_run]).timestamp() for one in entries]
    _tell(f"{count} stages ready at once: ready to submitted", waited)
    OUT.print(f"submissions that SLURM was asked for: {_asked(bench, 'REQUEST_SUBMIT_BATCH_JOB')}")
    later = []
    for number in range(5):
        one = bench.dispatch(root / f"one-more-{number}")
        bench.until("it is queued", lambda one=one: one.submissions(), 600)
        later.append(one.submissions()[0].submitted_at - state_at(one.run, "Scheduled"))
    _tell(f"one more while {count} jobs are queued: ready to submitted", later)
    bench.cluster.slurm("sdiag", "--reset")
    time.sleep(WATCHED_SECONDS)
    asked = _asked(bench, r"REQUEST_\S*JOB_INFO\S*")
    calls = sum(asked.values()) * 60 / WATCHED_SECONDS
    OUT.print(f"calls of SLURM a minute while {count} jobs are queued: {calls:.1f} (sdiag: {asked})")


def _asked(bench: Bench, request: str) -> dict[str, int]:
    """How often the controller had each of these requests."""
    found = re.findall(rf"^\s+({request})\s.*?count:(\d+)", bench.cluster.slurm("sdiag"), re.MULTILINE)
    return {name: int(times) for name, times in found}


def _with_places(count: int, root: Path, bench: Bench) -> None:
    """Few places: from a job's end to the submission of the one that gets its place."""
    bench.site.write_text(yaml.safe_dump(yaml.safe_load(bench.site.read_text()) | {"max_jobs": PLACES}))
    time.sleep(60)  # a worker reads the site file at each poll
    handles = _start(count, 20.0, root).handles[:count]
    journals = [Journal(jobs_folder(handle.run)) for handle in handles]
    entries = bench.until("many had a place", lambda: _submitted(journals, min(count, 7 * PLACES)), 3600)
    submitted = sorted(one.submitted_at for one in entries)
    records = [attempts.newest(handle.run.attempts) or {} for handle in handles]
    ended = sorted(record["ended_at"] for record in records if record.get("ended_at"))
    late = [next_ - end for end, next_ in zip(ended, submitted[PLACES:], strict=False)]
    _tell(f"{PLACES} places, {count} stages: a job's end to the next one submitted", late)


def _plain_chains(bench: Bench) -> None:
    """What SLURM itself takes from a job's end to the start of the next one, by --dependency."""
    late = []
    for _ in range(5):
        first = bench.cluster.slurm("sbatch", "--parsable", "-o", "/dev/null", "--wrap", "sleep 5").strip()
        then = ("--parsable", "-o", "/dev/null", f"--dependency=afterany:{first}", "--wrap", "true")
        second = bench.cluster.slurm("sbatch", *then).strip()
        bench.until("both ended", lambda second=second: bench.cluster.jobs().get(second) == "COMPLETED", 120)
        late.append(_times(bench, {second}, "StartTime")[0] - _times(bench, {first}, "EndTime")[0])
    _tell("plain sbatch --dependency: a job's end to the next one's start", late)


def _start(count: int, seconds: float, root: Path) -> Standings:
    study = cells.Study(name=root.name, cells=count, seconds=seconds)
    return Follower(SlurmStudy.at_site(load_page("benchmarks.cells"), study, str(root))).start()


def _submitted(journals: list[Journal], least: int) -> list[Submission] | None:
    found = [entry for journal in journals for entry in journal.all()[:1] if entry.job_id]
    return found if len(found) >= least else None


def _flow_runs(bench: Bench) -> list[dict[str, Any]]:
    pages = itertools.count(0, 200)
    found = (bench.api("POST", "/flow_runs/filter", {"limit": 200, "offset": offset}) for offset in pages)
    return [run for page in itertools.takewhile(bool, found) for run in page]


def _times(bench: Bench, jobs: set[str | None], field: str) -> list[float]:
    """Of those that have one; SLURM gives whole seconds."""
    told = bench.cluster.slurm("scontrol", "show", "job", "--oneliner").splitlines()
    lines = [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in told]
    ended = [line for line in lines if line["JobId"] in jobs and line["JobState"] == "COMPLETED"]
    return [datetime.fromisoformat(line[field]).timestamp() for line in ended]


def _peak(pid: int) -> str:
    """Of the process with those that it started."""
    started = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    statuses = [Path(f"/proc/{one}/status").read_text() for one in (pid, *started)]
    return f"{sum(int(re.findall(PEAK, status)[0]) for status in statuses) / 1024:.0f} MiB"


def _tell(said: str, seconds: list[float]) -> None:
    OUT.print(
        f"{said}: median {statistics.median(seconds):.1f} s ({min(seconds):.1f} to {max(seconds):.1f}, "
        f"{len(seconds)} of them)"
    )


@contextmanager
def at_hand(folder: Path, database: str = "", **variables: str) -> Iterator[tuple[Bench, Server]]:
    """Cluster, server and worker, as the tests on real SLURM have them, but for these variables."""
    with ExitStack() as ends:
        cluster, server = Cluster(), Server(folder, database)
        ends.callback(cluster.wipe)
        server.start()
        ends.callback(server.kill)
        bench = Bench(cluster, server.address, folder / "bench")
        bench.environment |= variables
        bench.deploy()
        ends.callback(bench.stop_workers)
        ends.enter_context(bench.at_hand(ends.enter_context(pytest.MonkeyPatch.context())))
        bench.ensure_worker()
        yield bench, server


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


def state_at(run: FlowRun, name: str) -> float:
    """When a flow run first had the state."""
    states = run.bench.api("GET", f"/flow_run_states/?flow_run_id={run.id}")
    return min(datetime.fromisoformat(state["timestamp"]).timestamp() for state in states if state["name"] == name)


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = options.add_mutually_exclusive_group(required=True)
    what.add_argument("--jobs", type=int, help="queue so many jobs at once")
    what.add_argument("--stages", type=int, help="run so many stages, one after the other")
    what.add_argument("--waiting", type=int, help="make so many stages ready at once")
    options.add_argument("--array-tasks", type=int, help="with --waiting: as job arrays, so many tasks at once")
    options.add_argument("--postgres", action="store_true", help="with --waiting: Prefect's server on PostgreSQL")
    given = options.parse_args()
    OUT.print(language.machine())
    with tempfile.TemporaryDirectory() as made:
        if given.stages:
            overhead(given.stages, Path(made))
        elif given.waiting:
            with postgres() if given.postgres else nullcontext("") as address:
                many_waiting(given.waiting, Path(made), address, given.array_tasks)
        else:
            many_jobs(given.jobs, Path(made))
