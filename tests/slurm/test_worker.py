"""Who serves, workers and study flows that die and come back: nothing is lost, and nothing is submitted twice."""

import os
import signal

import pytest

from deployments.dag.walk import Handle
from deployments.slurm.job.journal import run_of
from deployments.slurm.study.follow import entrust
from storage import attempts
from storage.run_directory import RunDirectory
from tests.slurm.harness import PROMISED_SECONDS, Bench, Dispatched, Run, state_of, toy_study

pytestmark = pytest.mark.slurm_long


def submitted_once(*toys: Dispatched) -> bool:
    """By the journal and by SLURM's own word."""
    return all(len(one.submissions()) == 1 == len(one.jobs()) for one in toys)


def test_who_serves_next_finds_jobs_that_ran_on_waited_and_ended_meanwhile(bench, tmp_path):
    ends = bench.dispatch(tmp_path / "ends", pauses=True)
    runs = bench.dispatch(tmp_path / "runs", pauses=True)
    ends.run.wait("Running")
    runs.run.wait("Running")
    bench.cluster.hold()
    waits = bench.dispatch(tmp_path / "waits")
    waits.job("PENDING")

    bench.workers["server"].kill()
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
    flow, root, _ = bench.start_flow("orphan", tmp_path)
    (training,) = bench.trains(root)
    bench.workers["ratchet"].kill()
    bench.start_worker("ratchet")
    flow.cancel()
    flow.wait("Cancelled", seconds=240)  # Prefect itself calls it so after 300 s
    assert "the job was cancelled" in flow.message
    bench.until("its job ended", lambda: [*bench.cluster.jobs("orphan-s3-").values()] == ["CANCELLED"])
    assert state_of(training) == "Cancelled" and not {"Crashed", "Failed"} & {*flow.history()}


def test_a_killed_study_flow_that_is_retried_attaches_to_what_runs(bench, tmp_path):
    flow, _, pause = bench.start_flow("attaches", tmp_path)
    killed(bench, flow)
    flow.retry()
    flow.wait("Running")
    pause.unlink()
    flow.wait("Completed")
    for job in ("attaches-s3-toy-training.", "attaches-s3-toy-report."):
        assert len(bench.cluster.jobs(job)) == 1, bench.told()


def killed(bench: Bench, flow: Run) -> None:
    """Kills the flow run's process, and waits until Prefect has told of it twice.

    The process's keeper tells at once and the worker up to half a minute later; a retry between the two can be lost.
    The second ends with this advice, in the log of this flow run.
    """
    os.kill(int(flow.read()["infrastructure_pid"].rpartition(":")[2]), signal.SIGKILL)
    late = ("prefect.flow_runs.worker", "Check whether the flow run exceeded its memory")
    of_flow = {"logs": {"flow_run_id": {"any_": [flow.id]}}}

    def told() -> bool:
        lines = bench.api("POST", "/logs/filter", of_flow)
        return any(line["name"] == late[0] and line["message"].startswith(late[1]) for line in lines)

    bench.until("the worker told of it", told)


def test_a_study_whose_flow_run_was_killed_is_followed_to_its_end_by_the_deployment_advance(bench, tmp_path):
    flow, root, pause = bench.start_flow("advanced", tmp_path)
    (training,) = bench.trains(root)
    killed(bench, flow)
    follows = bench.run_deployment("advance/advance", root=str(root))
    follows.wait("Running")
    assert bench.run_deployment("advance/advance", root=str(root)).wait("Completed"), "one at a time"
    pause.unlink()
    follows.wait("Completed")
    assert state_of(training) == "Completed" and [*root.glob("advanced/toy-report/*/COMPLETE.json")]
    assert len(bench.cluster.jobs("advanced-s3-")) == 2, bench.told()


@pytest.mark.drawn
def test_flow_run_retry_works_from_failed_cancelled_crashed_and_completed_and_repeats_no_finished_work(bench, tmp_path):
    root, pause, obstacle = tmp_path / "runs", tmp_path / "pause", tmp_path / "obstacle"
    pause.touch()
    obstacle.touch()
    study = toy_study("retried", pauses_while=str(pause), check_fails_while=str(obstacle))
    bench.stop_workers("server")
    bench.ensure_worker("ratchet")
    flow = bench.run_deployment("toy/toy", study=study.model_dump(mode="json"), root=str(root))
    flow.wait("Failed")
    assert all(part in flow.message for part in ("the way is free", str(obstacle))), flow.message
    (failed,) = root.glob("retried/toy-training/*")
    training = run_of(failed / "jobs")

    def trains_again(number: int) -> int:
        """Where the attempt of this number began, when it has gone a step further."""

        def look() -> int | None:
            tried = attempts.records(training.attempts)
            began = tried[-1]["began_at"][0] if len(tried) == number and tried[-1].get("began_at") else None
            return began if began is not None and step(training) > began else None

        return bench.until(f"attempt {number} trains", lambda: (began := look()) is not None and (began + 1)) - 1

    obstacle.unlink()
    flow.retry()  # from Failed
    trains_again(2)
    flow.cancel()
    flow.wait("Cancelled", seconds=PROMISED_SECONDS)
    bench.until("its job has ended", lambda: "RUNNING" not in bench.cluster.jobs("retried-s3-").values())

    reached = step(training)
    flow.retry()  # from Cancelled
    assert trains_again(3) >= reached > 0
    killed(bench, flow)
    flow.wait("Crashed")
    flow.retry()  # from Crashed
    flow.wait("Running")
    pause.unlink()
    flow.wait("Completed")
    marker = training.marker_file.stat()
    flow.retry()  # from Completed
    flow.wait("Running", "Completed")
    flow.wait("Completed")
    assert training.marker_file.stat() == marker, "the finished work was repeated"
    assert len(bench.cluster.jobs("retried-s3-toy-training.")) == 3, bench.told()


def step(run: RunDirectory) -> int:
    return max((int(found.name) for found in run.checkpoints.glob("[0-9]*")), default=0)


def test_a_start_is_not_lost_to_the_end_of_the_job_before_it_that_nobody_had_seen(bench, tmp_path):
    one = bench.dispatch(tmp_path / "runs", pauses=True)
    one.training_began()
    one.run.wait("Running")
    with bench.workers["server"].frozen():
        os.kill(one.record()["pid"], signal.SIGKILL)
        one.go_on()
        one.job("FAILED")
        entrust(one.slurm, one.follower)
    one.run.wait("Completed")
    assert not {"Crashed", "Failed", "Cancelled"} & {*one.run.history()}, one.run.history()
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
        one.run.retry()
        assert one.look().standing(one.training).stand == "under way", "what was edited is not believed"
        assert finished(one)[0].run.path == one.folder
        told = bench.cluster.jobs(f"{one.study.name}-s3-toy-report.")
        assert len(told) == reports, f"{said}: {told}"
    assert finished(one)[1].run.path == report.run.path
    assert len(one.jobs()) == 3


def finished(one: Dispatched) -> list[Handle]:
    """Both stages, when they are."""
    return one.bench.until("both are finished", lambda: all_finished(one.look().handles))


def all_finished(handles: list[Handle]) -> list[Handle] | None:
    return handles if all(handle.finished for handle in handles) else None
