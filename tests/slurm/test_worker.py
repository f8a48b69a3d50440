"""Workers and study flows that die and come back: nothing is lost, and nothing is submitted twice."""

import os
import signal

import pytest

from deployments.dag.walk import Handle
from tests.slurm.harness import PROMISED_SECONDS, Dispatched, Run, toy_study

pytestmark = pytest.mark.slurm_long


def submitted_once(*toys: Dispatched) -> bool:
    """By the journal and by SLURM's own word."""
    return all(len(one.submissions()) == 1 == len(one.jobs()) for one in toys)


def test_a_worker_that_comes_back_finds_jobs_that_ran_on_waited_and_ended_meanwhile(bench, tmp_path):
    ends = bench.dispatch(tmp_path / "ends", pauses=True)
    runs = bench.dispatch(tmp_path / "runs", pauses=True)
    ends.run.wait("Running")
    runs.run.wait("Running")
    bench.cluster.hold()
    waits = bench.dispatch(tmp_path / "waits")
    waits.job("PENDING")

    bench.workers["gpu"].kill()
    ends.go_on()
    ends.job("COMPLETED")
    assert [one.run.state for one in (ends, runs)] == ["Running", "Running"], "nobody is there to say otherwise"
    bench.start_worker()
    ends.run.wait("Completed")
    bench.cluster.release()
    runs.go_on()
    for one in (runs, waits):
        one.run.wait("Completed")
    assert submitted_once(ends, runs, waits), bench.told()


@pytest.mark.drawn
def test_a_study_whose_worker_was_killed_and_replaced_is_cancelled_as_any_other(bench, tmp_path):
    """Its cancel timed out after five minutes, and its jobs went on; or the next line of its log crashed it."""
    bench.ensure_worker("ratchet")
    study, root = toy_study("orphan", steps=2000, step_seconds=0.25), tmp_path / "runs"
    flow = bench.run_deployment("toy/toy", study=study.model_dump(mode="json"), root=str(root))
    (training,) = bench.until("it trains", lambda: bench.runs_of("orphan toy-training"))
    training.wait("Running")
    bench.until("there is something to lose", lambda: any(root.glob("*/toy-training/*/checkpoints/[0-9]*")))
    bench.workers["ratchet"].kill()
    bench.start_worker("ratchet")
    flow.cancel()
    flow.wait("Cancelled", seconds=240)  # Prefect itself calls it so after 300 s
    assert "the job was cancelled (scancel, or Cancel in Prefect)" in flow.message
    training.wait("Cancelled")
    assert not {"Crashed", "Failed"} & {*flow.history(), *training.history()}


@pytest.mark.drawn
def test_of_two_workers_of_a_pool_one_submits_and_the_other_takes_over_when_it_is_killed(bench, tmp_path):
    second = bench.start_worker(key="gpu-2")
    try:
        before = [bench.dispatch(tmp_path / f"before{n}", steps=60, step_seconds=0.25) for n in range(3)]
        for one in before:
            one.job("RUNNING", "COMPLETED")
        assert "serves the pool" not in second.told()
        bench.workers["gpu"].kill()
        after = bench.dispatch(tmp_path / "after")
        for one in (*before, after):
            one.run.wait("Completed")
        assert submitted_once(*before, after), bench.told()
    finally:
        bench.stop_workers("gpu-2")


def test_a_killed_study_flow_that_is_retried_attaches_to_what_runs(bench, tmp_path):
    root, pause = tmp_path / "runs", tmp_path / "pause"
    pause.touch()
    study = toy_study("attaches", pauses_while=str(pause))
    bench.ensure_worker("ratchet")
    flow = bench.run_deployment("toy/toy", study=study.model_dump(mode="json"), root=str(root))

    def of_stage(name: str) -> list[Run]:
        return bench.runs_of(f"attaches {name}")

    bench.until("the training runs", lambda: [one for one in of_stage("toy-training") if one.state == "Running"])
    os.kill(int(flow.read()["infrastructure_pid"].rpartition(":")[2]), signal.SIGKILL)
    # Prefect tells of it twice, the process's keeper at once and the worker up to half a minute later; a retry between
    # the two can be lost. The second ends with this advice, in the log of this flow run.
    late = ("prefect.flow_runs.worker", "Check whether the flow run exceeded its memory")
    of_flow = {"logs": {"flow_run_id": {"any_": [flow.id]}}}

    def told() -> bool:
        lines = bench.api("POST", "/logs/filter", of_flow)
        return any(line["name"] == late[0] and line["message"].startswith(late[1]) for line in lines)

    bench.until("the worker told of it", told)
    flow.retry()
    flow.wait("Running")
    pause.unlink()
    flow.wait("Completed")
    for stage, job in {"toy-training": "attaches-s3-toy-training.", "toy-report": "attaches-s3-toy-report."}.items():
        (run,) = of_stage(stage)
        run.wait("Completed")
        assert len(bench.cluster.jobs(job)) == 1, bench.told()


def test_after_a_retry_of_one_stage_the_deployment_advance_has_its_study_go_on(bench, tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    one = bench.dispatch(tmp_path / "runs", check_fails_while=str(obstacle))
    one.run.wait("Failed")
    obstacle.unlink()
    one.run.retry()
    one.run.wait("Completed")
    bench.ensure_worker("ratchet")  # the worker of the stages may be quicker: nothing starts twice
    bench.run_deployment("advance/advance", root=str(tmp_path / "runs")).wait("Completed")
    (report,) = bench.runs_of(f"{one.study.name} toy-report")
    report.wait("Completed")
    assert len(one.jobs()) == 2, "finished work was not repeated"


@pytest.mark.drawn
def test_flow_run_retry_works_from_failed_cancelled_crashed_and_completed_and_repeats_no_finished_work(bench, tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    one = bench.dispatch(tmp_path / "runs", pauses=True, check_fails_while=str(obstacle))
    one.run.wait("Failed")
    assert all(part in one.run.message for part in ("the way is free", str(obstacle))), one.run.message

    obstacle.unlink()
    one.run.retry()  # from Failed
    one.job("RUNNING", number=2)
    one.training_began()
    one.run.cancel()
    one.run.wait("Cancelled", seconds=PROMISED_SECONDS)

    reached = one.step()
    one.run.set_state("CRASHED", "Crashed", force=True)  # as Prefect's own services do
    one.run.retry()
    one.job("RUNNING", number=3)
    bench.until("it goes on", lambda: one.step() > reached)
    assert one.records()[-1]["began_at"][0] >= reached > 0
    bench.cluster.slurm("scancel", one.job(number=3))
    one.run.wait("Cancelled", seconds=PROMISED_SECONDS)

    one.go_on()
    one.run.retry()  # from Cancelled
    one.run.wait("Completed")
    marker = (one.folder / "COMPLETE.json").stat()
    one.run.retry()  # from Completed
    one.job("COMPLETED", number=5)
    one.run.wait("Completed")
    assert (one.folder / "COMPLETE.json").stat() == marker, "the finished work was repeated"
    assert len(one.jobs()) == len(one.submissions()) == 5, bench.told()


def test_a_retry_is_not_lost_to_the_end_of_the_job_before_it_that_nobody_had_seen(bench, tmp_path):
    """Prefect's own worker tells of an end when it finds it, over whatever was asked for meanwhile."""
    one = bench.dispatch(tmp_path / "runs", pauses=True)
    one.training_began()
    one.run.wait("Running")
    with bench.workers["gpu"].frozen():
        os.kill(one.record()["pid"], signal.SIGKILL)
        one.go_on()
        one.job("FAILED")
        one.run.set_state("CRASHED", "Crashed", force=True)  # as Prefect's own services do
        one.run.retry()
        asked = len(one.run.history())
    one.run.wait("Completed")
    assert not {"Crashed", "Failed", "Cancelled"} & set(one.run.history()[asked:]), one.run.history()
    assert len(one.jobs()) == len(one.submissions()) == 2, bench.told()


@pytest.mark.drawn
def test_an_edited_output_makes_its_stage_run_again_and_the_next_one_only_if_the_bytes_differ(bench, tmp_path):
    word = tmp_path / "word"
    word.write_text("first")
    one = bench.dispatch(tmp_path / "runs", said_in=str(word))
    report = finished(one)[1]
    for said, reports in (("first", 1), ("second", 2)):
        word.write_text(said)
        edited = one.folder / "model" / "model.safetensors"
        edited.write_bytes(edited.read_bytes()[:-1] + b"?")
        assert one.advance(person=True).standing(one.training).stand == "under way", "what was edited is not believed"
        assert finished(one)[0].run.path == one.folder
        told = bench.cluster.jobs(f"{one.study.name}-s3-toy-report.")
        assert len(told) == reports, f"{said}: {told}"
    assert finished(one)[1].run.path == report.run.path
    assert len(one.jobs()) == 3


def finished(one: Dispatched) -> list[Handle]:
    """Looks as `advance` does until both stages are finished."""
    return one.bench.until("both are finished", lambda: all_finished(one.advance().handles))


def all_finished(handles: list[Handle]) -> list[Handle] | None:
    return handles if all(handle.finished for handle in handles) else None
