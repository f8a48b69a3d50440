"""A controller that freezes, restarts or forgets: each job is submitted once, and its end is found."""

import os
import signal

import pytest

from deployments.slurm.cluster.client import SlurmCommands
from tests.slurm.harness import Bench

pytestmark = pytest.mark.slurm_long


@pytest.mark.drawn
def test_a_submit_that_a_frozen_controller_did_not_answer_is_not_repeated(bench, tmp_path):
    """sbatch fails after ten seconds, and the job is queued all the same when the controller wakes."""
    worker = bench.workers["server"]  # one that was just started submits nothing before it has looked at SLURM
    bench.until("the worker has looked", lambda: "jobs at once below this root" in worker.told())
    with bench.cluster.frozen_controller():
        one = bench.dispatch(tmp_path / "runs")
        bench.until("sbatch gave up", lambda: "it is searched for by its name" in worker.told())
        assert [entry.job_id for entry in one.submissions()] == [None]
    one.run.wait("Completed")
    assert len(one.submissions()) == len(one.jobs()) == 1, bench.told()
    assert one.submissions()[0].job_id in one.jobs()


def test_a_controller_that_restarts_disturbs_no_job(bench, tmp_path):
    runs = bench.dispatch(tmp_path / "runs", pauses=True)
    runs.job("RUNNING")
    bench.cluster.hold()
    waits = bench.dispatch(tmp_path / "waits")
    waits.job("PENDING")
    bench.cluster.script("restart-ctld")
    runs.go_on()
    bench.cluster.release()
    for one in (runs, waits):
        one.run.wait("Completed")
        assert len(one.submissions()) == len(one.jobs()) == 1, bench.told()
        assert "Crashed" not in one.run.history()


def test_jobs_that_ended_and_were_forgotten_while_no_worker_polled_end_as_what_they_wrote_says(own_bench, tmp_path):
    """No accounting here: `sacct` answers that there is none."""
    bench = own_bench(nodes=1, extra="MinJobAge=2")
    finishes = bench.dispatch(tmp_path / "finishes", pauses=True)
    fails = bench.dispatch(tmp_path / "fails", steps=40, check_fails_while="/dev/null")
    for one in (finishes, fails):
        one.job()
    bench.workers["server"].kill()
    finishes.go_on()
    bench.until("SLURM forgot both", lambda: not (finishes.jobs() or fails.jobs()))
    bench.start_worker()
    finishes.run.wait("Completed")
    fails.run.wait("Failed")
    assert "the way is free" in fails.run.message
    assert [len(one.submissions()) for one in (finishes, fails)] == [1, 1]


@pytest.mark.drawn
def test_a_controller_that_starts_without_its_state_cancels_no_stage(own_bench, tmp_path):
    """The accounting has its jobs as CANCELLED by nobody; one that somebody cancelled before stays so."""
    bench = own_bench(nodes=1, dbd=1, extra="MinJobAge=2")
    cancelled = bench.dispatch(tmp_path / "cancelled", pauses=True)
    bench.cluster.slurm("scancel", cancelled.job("RUNNING"))
    cancelled.run.wait("Cancelled")
    running = bench.dispatch(tmp_path / "running", pauses=True)
    running.training_began()
    bench.cluster.hold()
    waiting = bench.dispatch(tmp_path / "waiting")
    waiting.job("PENDING")
    bench.cluster.script("lose-state")
    running.job(number=2)
    running.go_on()
    for one in (running, waiting):
        one.run.wait("Completed")
        first, *others = one.submissions()
        assert first.end and first.end.diagnosis and first.end.diagnosis.category == "lost", bench.told()
        assert len(others) == 1 and "Cancelled" not in one.run.history(), bench.told()
    assert cancelled.run.state == "Cancelled" and len(cancelled.submissions()) == 1


@pytest.mark.drawn
def test_accounting_that_goes_down_in_the_middle_costs_nothing(own_bench, tmp_path):
    """A job that the controller forgot is asked of the accounting, which does not answer; then of its run directory."""
    bench = own_bench(nodes=1, dbd=1, extra="MinJobAge=2")
    forgotten = bench.dispatch(tmp_path / "forgotten", pauses=True)
    forgotten.job("RUNNING")
    bench.cluster.script("stop-dbd")
    bench.workers["server"].kill()
    forgotten.go_on()
    bench.until("SLURM forgot it", lambda: not forgotten.jobs())
    bench.start_worker()
    meanwhile = bench.dispatch(tmp_path / "meanwhile")
    for one in (forgotten, meanwhile):
        one.run.wait("Completed")
    bench.cluster.script("start-dbd")
    killed = bench.dispatch(tmp_path / "killed", pauses=True)
    killed.training_began()
    bench.until("what it uses was looked at", lambda: sampled(bench, killed.job()))
    os.kill(killed.record()["pid"], signal.SIGKILL)
    killed.go_on()
    killed.run.wait("Completed")
    first = killed.submissions()[0]
    (used,) = bench.until("it was measured", lambda: SlurmCommands().used([first.job_id or ""]).values())
    assert used.name == first.name and used.peak_memory_bytes > 100 * 2**20 and used.cpu_seconds > 1
    names = bench.cluster.slurm("sacct", "-n", "-X", "-P", "-o", "JobName").splitlines()
    assert sum("toy-training" in name for name in names) == 4, names


def sampled(bench: Bench, job: str) -> bool:
    """SLURM has seen it use more than 100 MB and a second of CPU."""
    told = bench.cluster.slurm("sstat", "-n", "-P", "-j", f"{job}.0", "-o", "MaxRSS,AveCPU")
    memory, cpu = told.split("|") if told else ("", "")
    return memory.endswith("K") and float(memory[:-1]) > 100 * 2**10 and cpu > "00:00:01"
