"""A study on the real cluster by one command, without any server or worker that stands."""

import signal
import sys

import pytest

from deployments.slurm.cluster.site import Site
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.study.looks import Looks
from storage import locks
from tests.deployments.prefect.test_embedded import _gone
from tests.slurm.alone import Alone
from tests.slurm.harness import until

pytestmark = pytest.mark.slurm_long


@pytest.mark.drawn
def test_a_command_that_waits_needs_no_services_and_killed_and_started_again_runs_no_stage_twice(alone):
    killed = alone.wait()
    alone.trains()
    killed.process.kill()
    assert _gone(alone.home, within_seconds=60), "its server and its worker end with it"
    assert len(alone.jobs("RUNNING")) == 1, "its job goes on"

    again = alone.wait()
    again.until("the job that runs is found", lambda: "under way: job" in again.said(), alone.told)
    alone.hold.unlink()
    code, said = again.end()
    assert code == 0 and "the study is finished: " in said, said + alone.told()
    assert _gone(alone.home, within_seconds=60)
    alone.require_each_once()


def test_one_of_two_that_wait_serves_the_root_and_the_other_takes_over_when_it_is_killed(alone):
    """Two would submit each job."""
    serves = alone.wait()
    alone.trains()
    other = alone.wait("--set=training.seed=9")
    other.until("its job was submitted by the first", lambda: "under way: job" in other.said(), alone.told)
    jobs = locks.holder(alone.root / ".slurm" / "gpu" / "locks")
    assert jobs and jobs["pid"] == serves.process.pid
    serves.process.kill()
    serves.process.wait()
    alone.hold.unlink()
    code, said = other.end()
    assert code == 0 and "the study is finished: " in said, said + alone.told()
    assert len(alone.jobs()) >= 3, "what comes after its training was submitted by itself"
    code, said = alone.wait().end()
    assert code == 0 and len(alone.jobs()) == 4, said + alone.told()


@pytest.mark.drawn
def test_interrupted_it_leaves_queued_jobs_and_says_so_and_a_cancelled_study_starts_again(alone):
    alone.cluster.hold()
    waits = alone.wait()
    waits.until("a job is queued", lambda: alone.jobs("PENDING"), alone.told)
    code, said = waits.end(signal.SIGINT)
    assert code == 130 and "Jobs that run or are queued go on" in said
    assert _gone(alone.home, within_seconds=60) and len(alone.jobs("PENDING")) == 1
    code, said = alone.command("status", "--dispatch=slurm").end()
    assert code == 75 and "nobody follows this study" in said and "under way" in said, said

    code, said = alone.command("cancel").end()
    assert code == 0 and "cancelled: 1 jobs" in said
    until("it is gone", lambda: not alone.jobs("PENDING"), told=alone.told)

    alone.cluster.release()
    waits = alone.wait()
    alone.trains()
    code, said = waits.end(signal.SIGTERM)
    assert code == 75 and "stopped by SIGTERM. Jobs that run" in said
    alone.hold.unlink()
    code, said = alone.wait().end()
    assert code == 0, said + alone.told()
    assert len(Journal(jobs_folder(alone.training)).all()) == 2, "the cancelled job and the one after it"


@pytest.mark.drawn
def test_two_roots_on_one_login_node_keep_to_their_own_site_files_and_start_nothing_of_each_other(
    alone, own_prefect_home, tmp_path
):
    """Their commands share PREFECT_HOME, and so the server and the pool."""
    other = Alone(alone.cluster, tmp_path / "other", own_prefect_home)
    of_mine, of_theirs = {"time_limit_minutes": 11}, {"partition": "high", "time_limit_minutes": 33}
    with alone.bench.site_with({"max_jobs": 1}, **of_mine), other.bench.site_with(**of_theirs):
        mine, theirs = alone.wait(), other.wait()
        alone.trains()
        other.trains()
        assert mine.end(signal.SIGINT)[0] == 130
        alone.hold.unlink()
        until("the training is finished", alone.training.marker_file.exists, told=alone.told)
        other.hold.unlink()
        code, said = theirs.end()
        assert code == 0, said + other.told()
        assert len(alone.jobs()) == 1, "what was interrupted waits for its own command"
        code, said = alone.wait().end()
        assert code == 0, said + alone.told()
    for one, asked in ((alone, ["cpu", "11:00"]), (other, ["high", "33:00"])):
        assert one.told_of_jobs() == [["training", *asked], ["report", *asked]]
        one.require_each_once()


def test_who_cancels_from_elsewhere_ends_what_waits_for_a_place_too(alone):
    """What had no job yet got one after the cancel."""
    with alone.bench.site_with({"max_jobs": 1}):
        both = alone.command("sweep", "--over=training.seed=3,4", "--dispatch=slurm", "--wait")
        both.until("one waits for the other", lambda: "waits for a place" in both.said(), alone.told)
        assert alone.command("cancel", "--over=training.seed=3,4").end()[0] == 0
        code, said = both.end()
    assert code == 130 and "Cancelled: " in said, said + alone.told()
    assert len(alone.jobs()) == 1, alone.told()


@pytest.mark.drawn
def test_a_detached_study_goes_on_by_looks_of_which_any_may_be_lost(alone):
    """While nothing happens nothing of ours runs; one look waits for the end of a job, and one for some minutes."""
    code, said = alone.command("run", "--dispatch=slurm", "--detach").end()
    assert code == 75 and " submits the study's jobs" in said and "no worker" not in said, said
    looks = Looks(Site(root=str(alone.root)))

    def waiting() -> dict[str, str]:
        """What each look waits for; nothing while one is at work."""
        lines = alone.cluster.slurm("squeue", "-h", f"--name={looks.name}", "-o", "%i %T %r").splitlines()
        found = [line.split() for line in lines]
        return {} if "RUNNING" in {state for _, state, _ in found} else {job: reason for job, _, reason in found}

    def trains() -> bool:
        return sorted(waiting().values()) == ["BeginTime", "Dependency"] and any(
            alone.training.checkpoints.glob("[0-9]*")
        )

    until("it trains, and two looks wait", trains, told=alone.told)
    for job, reason in waiting().items():
        if reason == "Dependency":
            alone.cluster.slurm("scontrol", "hold", job)
        else:
            guard = job
    code, said = alone.command("run", "--dispatch=slurm", "--detach").end()
    assert code == 75, said
    until("a look was there for the second start", lambda: len(waiting()) == 2, told=alone.told)
    for job, reason in waiting().items():
        if reason == "Dependency":
            alone.cluster.slurm("scontrol", "hold", job)
    alone.hold.unlink()
    until("the training is finished", alone.training.marker_file.exists, told=alone.told)
    alone.cluster.slurm("scontrol", "update", f"jobid={guard}", "starttime=now")  # five minutes have passed
    until("the study is finished", lambda: alone.run("toy-report").marker_file.exists(), told=alone.told)
    until("no look is left", lambda: not {"PENDING", "RUNNING"} & {*alone.cluster.jobs(looks.name).values()})
    assert "Completed: " in looks.log.read_text() and not list(looks.entries())
    alone.require_each_once()


def test_a_sweep_with_a_stopped_cell_has_its_table_without_it(alone):
    alone.hold.unlink()
    code, said = alone.command("sweep", "--over=training.poisoned_loss=0,998,999", "--dispatch=slurm", "--wait").end()
    assert code == 1 and "the sweep (without training.poisoned_loss 0) is finished" in said, said + alone.told()


ARMS = '''
"""Six arms, none of which has what the report asks for."""
import ratchet as r

@r.stage(needs="cpu", torch=False)
def arm(run, how: str, fold: int):
    return {"accuracy": fold / 10}

@r.study
def arms():
    return r.report({how: [arm(how=how, fold=fold) for fold in range(3)] for how in "ab"}, metric="precision")
'''


def test_a_metric_that_the_report_does_not_find_ends_the_study_at_the_first_finished_arm(alone):
    (page := alone.folder / "arms.py").write_text(ARMS)
    words = (str(page), f"--set=name={alone.name}", "--dispatch=slurm")
    with alone.bench.site_with({"max_jobs": 1}):
        code, said = alone.begin("run", *words, "--wait").end()
        assert code == 2 and "has no 'precision' in its result" in said, said + alone.told()
        assert len(alone.jobs()) < 4, "the others had no job yet"
        code, said = alone.begin("status", *words).end()
    assert code == 75 and "bad input: arms-arm " in said and "has no 'precision' in its result" in said, said


@pytest.mark.drawn
def test_the_doctor_finds_a_partition_that_is_not_there_and_a_root_that_nodes_do_not_see(alone):
    def looked() -> tuple[int, list[str]]:
        code, said = alone.begin("doctor").end()
        return code, [line for line in said.splitlines() if not line.startswith("good  ")]

    alone.root.mkdir()
    assert looked() == (0, []), alone.told()
    with alone.bench.site_with(partition="cpuu"):
        code, bad = looked()
        assert code == 1 and "name one of cpu, gpu, low, high" in bad[0], bad
    with alone.bench.site_with(gpus=1, gpu_model="h100"):
        code, bad = looked()
        assert code == 1 and "its GPUs are not of this model: name one of a100" in bad[0], bad
    with alone.bench.site_with(gpus=1):
        code, bad = looked()
        assert code == 1 and len(bad) == 1 and "finds no GPU there" in bad[0], bad
    unseen = alone.folder / "python"
    unseen.write_text(
        f'#!/bin/bash\nunshare -m bash -c \'mount -t tmpfs none {alone.root} && exec {sys.executable} "$@"\' - "$@"\n'
    )
    unseen.chmod(0o755)
    with alone.bench.site_with({"python": str(unseen)}):
        code, bad = looked()
    assert code == 1 and len(bad) == 1 and "give a root on a disk that nodes share" in bad[0], bad
