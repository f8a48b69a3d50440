"""Every way in which a job ends before its work: what follows, and what a person is told."""

import os
import signal
from contextlib import suppress
from typing import Any

import pytest

from deployments.dag.page import load_page
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.study.follow import entrust
from deployments.slurm.study.looks import Looks
from deployments.slurm.study.study import SlurmStudy
from storage.run_directory import read
from tasks.stage.outcome import END_STATES
from tests.slurm import toy
from tests.slurm.harness import PROMISED_SECONDS, Dispatched, processes_of
from tests.slurm.test_continue import digest_of_a_run_here
from tests.storage.runs import small_disk

pytestmark = pytest.mark.slurm_long


@pytest.mark.parametrize("how", ["scancel", "ratchet cancel"])
def test_a_cancel_ends_running_and_queued_jobs_soon_and_nothing_starts_them_again(how, bench, tmp_path):
    runs = bench.dispatch(tmp_path / "runs", pauses=True)
    runs.run.wait("Running")
    runs.training_began()
    bench.cluster.hold()
    waits = bench.dispatch(tmp_path / "waits")
    waits.job("PENDING")
    waits.run.wait("InfrastructurePending")
    for one in (waits, runs):
        if how == "scancel":
            bench.cluster.slurm("scancel", one.job())
        else:
            one.run.cancel()
        one.run.wait("Cancelled", seconds=PROMISED_SECONDS)
        one.job("CANCELLED", seconds=PROMISED_SECONDS)
        assert "cancelled" in one.run.message and "Retry" in one.run.message
    bench.cluster.release()
    assert runs.record()["end_state"] == "sigterm", "it saved before it ended"
    assert [one.look().standings[one.training.run.fingerprint].stand for one in (runs, waits)] == ["cancelled"] * 2
    assert [len(one.jobs()) for one in (runs, waits)] == [1, 1]


def test_a_disk_that_was_full_when_the_job_began_is_named_and_the_next_job_finishes(bench, tmp_path):
    """There is no room for a record of the attempt: the job's exit code tells."""
    with small_disk(tmp_path / "disk", "size=1100m,mode=755") as disk:
        bench.cluster.hold()
        one = bench.dispatch(disk / "runs")
        one.job("PENDING")
        filled = disk / "filled"
        with filled.open("wb", buffering=0) as file:
            for size in (2**20, 4096):
                with suppress(OSError):
                    while file.write(b"\0" * size):
                        pass
        bench.cluster.release()
        one.job("FAILED")
        assert not one.records()
        filled.unlink()
        one.run.wait("Completed")
        first, _ = one.submissions()
        assert first.end and first.end.diagnosis and first.end.diagnosis.category == "disk full", bench.told()


@pytest.mark.drawn
def test_record_job_marker_and_prefect_agree_on_every_end_of_a_stage(bench, tmp_path):
    word = tmp_path / "word"
    settings = toy.TrainingConfig().execution.model_copy(update={"max_steps_per_run": 4})
    ends: dict[str, tuple[str, dict[str, Any]]] = {
        "finished": ("Completed", {}),
        "bad_input": ("Failed", {"bad_input_while": "/dev/null"}),
        "check_failed": ("Failed", {"check_fails_while": "/dev/null"}),
        "numerical_failure": ("Failed", {"poisoned_loss": 0}),
        "out_of_time": ("AwaitingRetry", {"execution": settings}),
        "crashed": ("AwaitingRetry", {"said_in": str(word)}),
    }
    toys = {end_state: bench.dispatch(tmp_path / end_state, **fields) for end_state, (_, fields) in ends.items()}
    for end_state, (state, _) in ends.items():
        one = toys[end_state]
        bench.until(f"{end_state} is {state}", lambda one=one, state=state: state in one.run.history())
        job = SlurmCommands().jobs()[one.job()]
        code = END_STATES[end_state].exit_code
        assert (job.state, job.exit_code) == ("FAILED" if code else "COMPLETED", code), job
        assert (one.records()[0]["end_state"], one.records()[0]["exit_code"]) == (end_state, code)
        if state != "AwaitingRetry":
            assert one.run.state == state and (one.folder / "COMPLETE.json").exists() is (state == "Completed")
            assert len(one.submissions()) == 1, "it stopped"
    assert "/dev/null is in the way" in toys["bad_input"].run.message and "Correct" in toys["bad_input"].run.message
    word.write_text("what it looked for")
    for end_state in ("out_of_time", "crashed"):
        toys[end_state].run.wait("Completed")
        assert not {"Failed", "Crashed"} & set(toys[end_state].run.history())


@pytest.mark.drawn
def test_a_job_whose_processes_are_killed_goes_on_from_its_checkpoint(bench, tmp_path):
    one = bench.dispatch(tmp_path / "runs", pauses=True)
    one.training_began()
    os.kill(one.record()["pid"], signal.SIGKILL)
    one.job("RUNNING", number=2)
    bench.until("the second job trains", lambda: len(one.records()) == 2 and one.step() > reached(one))
    kill(processes_of(one.job(number=2)))  # the batch shell too
    one.go_on()
    one.run.wait("Completed")
    assert len(one.submissions()) == 3
    began_at = [record["began_at"][0] for record in one.records()]
    assert 0 == began_at[0] < began_at[1] < began_at[2], began_at
    assert [entry.end.diagnosis.level for entry in one.submissions() if entry.end][:2] == ["error"] * 2


def kill(processes: list[int]) -> None:
    assert processes
    for pid in processes:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def reached(one: Dispatched) -> int:
    """Where the newest attempt began."""
    return int(one.record()["began_at"][0])


@pytest.mark.drawn
@pytest.mark.parametrize("how", ["operator", "dies"])
def test_a_node_that_fails_is_avoided_by_the_next_job(how, own_bench, tmp_path):
    bench = own_bench(extra="SlurmdTimeout=30" if how == "dies" else "")  # after which a node counts as dead
    one = bench.dispatch(tmp_path / "runs", pauses=True)
    one.training_began()
    job = one.job("RUNNING")
    node = bench.cluster.slurm("squeue", "-h", "-j", job, "-o", "%N")
    if how == "operator":
        bench.cluster.slurm("scontrol", "update", f"nodename={node}", "state=down", "reason=test")
    else:
        # nothing of a dead node lives on: not the daemon, not the one that keeps the job and would tell of its end
        bench.cluster.script("kill-node", node)
        kill(processes_of(job, keepers=True))
    one.job("RUNNING", number=2)
    one.go_on()
    one.run.wait("Completed")
    first, second = one.submissions()
    assert first.end and first.end.diagnosis.category == "node failure", first
    assert first.end.exclude == [node]
    assert one.records()[-1]["slurm_job_id"] == second.job_id
    assert node not in bench.cluster.slurm("squeue", "-h", "-t", "all", "-j", second.job_id or "", "-o", "%N")


def test_a_preempted_job_goes_on(bench, tmp_path):
    resources = {"partition": "low", "cpus": 8, "exclude": ["n2"]}
    one = bench.dispatch(tmp_path / "runs", resources=resources, pauses=True)
    one.training_began()
    bench.cluster.slurm(
        "sbatch", "-p", "high", "-w", "n1", "-c", "8", "-t", "1", "-o", "/dev/null", "--wrap", "sleep 5"
    )
    one.job("PREEMPTED")
    one.go_on()
    one.run.wait("Completed")
    assert len(one.submissions()) == 2
    assert "AwaitingRetry" in one.run.history() and "Crashed" not in one.run.history()
    assert one.records()[1]["began_at"][0] > 0


GUEST = """
import ratchet as r

@r.stage(needs="cpu", torch=False)
def script(run):
    run.command("python", {script!r}, checkpoints="step*.txt", resume=["{{checkpoint}}"], leaves=["out.txt"])
    return {{}}

@r.study
def guest():
    return script()
"""
SCRIPT = """
import signal, sys, time
from pathlib import Path

def save(*_):
    Path(f"step{step}.txt").write_text(str(step))
    sys.exit(143)

step = int(Path(sys.argv[1]).read_text()) if sys.argv[1:] else 0
signal.signal(signal.SIGTERM, save)
while step < 9:
    step += 1
    while step == 5 and not sys.argv[1:]:
        Path("waits").touch()
        time.sleep(0.1)
Path("out.txt").write_text(f"went on from {sys.argv[1:]}")
"""


def test_a_stage_and_a_guests_script_hear_that_they_are_preempted_and_lose_no_step(bench, tmp_path):
    """The grace begins with a SIGTERM that SLURM sends to steps alone, with cgroups to no child of the job's shell."""
    (tmp_path / "guest.py").write_text(GUEST.format(script=str(tmp_path / "script.py")))
    (tmp_path / "script.py").write_text(SCRIPT)
    page, resources = load_page(str(tmp_path / "guest.py")), {"partition": "low", "cpus": 4, "exclude": ["n2"]}
    study = page.model(name="guest", execution=toy.HOW.model_copy(update={"resources": {"all": resources}}))
    slurm = SlurmStudy.at_site(page, study, str(tmp_path / "runs"))
    entrust(slurm, Looks(slurm.site))
    guest, scratch = slurm.handles[0].run, slurm.handles[0].run.path / "scratch"
    seldom = toy.HOW.model_copy(update={"checkpoint_every_steps": None, "checkpoint_every_seconds": 3600.0})
    one = bench.dispatch(tmp_path / "runs", resources=resources, pauses=True, execution=seldom)

    def step() -> int:
        return int(read(one.training.run.progress_file).get("step") or 0)

    bench.cluster.slurm("scontrol", "update", "partitionname=low", "gracetime=3600")
    try:
        bench.until("both are at work", lambda: step() and (scratch / "waits").exists())
        bench.cluster.slurm("sbatch", "-p", "high", "-w", "n1", "-c", "8", "-t", "1", "-o", "/dev/null", "--wrap", "")
        one.job("FAILED", seconds=PROMISED_SECONDS)  # not PREEMPTED: it ended in time, by itself
    finally:
        bench.cluster.slurm("scontrol", "update", "partitionname=low", "gracetime=0")
    one.go_on()
    one.run.wait("Completed")
    bench.until("the guest is finished", (guest.path / "COMPLETE.json").exists)
    first, second = one.records()
    assert (first["end_state"], second["began_at"][0]) == ("sigterm", 2), "the step that it was in is saved"
    assert one.digest == digest_of_a_run_here(tmp_path / "here")
    assert (scratch / "out.txt").read_text().endswith("step5.txt']"), bench.told()


def test_a_job_that_is_requeued_by_hand_is_refused_by_slurm(bench, tmp_path):
    """A requeue would run the same job twice beside the continuation that follows."""
    one = bench.dispatch(tmp_path / "runs", pauses=True)
    one.training_began()
    with pytest.raises(AssertionError, match="disabled"):
        bench.cluster.slurm("scontrol", "requeue", one.job())
    one.go_on()
    one.run.wait("Completed")
    assert len(one.records()) == 1


@pytest.mark.drawn
def test_a_job_that_an_operator_requeues_is_shown_as_waiting_until_it_runs_again(bench, tmp_path):
    one = bench.dispatch(tmp_path / "runs", steps=200, step_seconds=0.25)
    one.training_began()
    one.run.wait("Running")
    bench.cluster.hold()
    bench.cluster.slurm("scontrol", "update", f"jobid={one.job()}", "requeue=1")
    bench.cluster.slurm("scontrol", "requeue", one.job())
    one.run.wait("InfrastructurePending")
    bench.cluster.release()
    one.run.wait("Running")
    one.run.wait("Completed")
    assert len(one.submissions()) == 1 and len(one.records()) == 2


@pytest.mark.parametrize("cgroup", [0, 1])
def test_a_job_that_needs_more_memory_than_it_asked_for_is_given_more_once(cgroup, own_bench, tmp_path):
    """SLURM says FAILED of a job whose step was killed so, with cgroups and without, and only the log tells why."""
    bench = own_bench(nodes=1, cgroup=cgroup)
    one = bench.dispatch(tmp_path / "runs", resources={"memory_gb": 1}, pauses=True, memory_mb=900)
    one.job("FAILED")
    one.go_on()
    one.run.wait("Completed")
    first, second = one.submissions()
    assert first.end and first.end.diagnosis.category == "out of memory"
    assert (first.memory_gb, second.memory_gb) == (1, 2)
    told = bench.cluster.slurm("scontrol", "show", "job", second.job_id or "")
    assert "mem=2G" in told, told
