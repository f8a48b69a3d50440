"""A Prefect server that goes away, and one that forgets everything: the jobs go on, and nothing starts twice."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import attempts
from tests.slurm.harness import Bench, Server

pytestmark = pytest.mark.slurm_long
AWAY_SECONDS = 120


@pytest.fixture
def server(own_prefect_home: Path) -> Iterator[Server]:
    server = Server(own_prefect_home)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def bench(_bench: Bench, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """The shared cluster, with workers of a server of this test's own, which knows the pools and deployments."""
    bench = Bench(_bench.cluster, server.address, tmp_path / "own")
    bench.deploy()
    with bench.at_hand(monkeypatch):
        try:
            yield bench
        finally:
            bench.stop_workers()


@pytest.mark.drawn
@pytest.mark.parametrize("how", ["hangs", "answers 503"])
def test_a_server_that_does_not_serve_delays_no_job_and_the_states_are_set_afterwards(bench, server, tmp_path, how):
    flow, root, pause = bench.start_flow(name := f"delayed-{how[:4]}", tmp_path)
    with server.frozen() if how == "hangs" else server.answers_503():
        pause.unlink()
        bench.until("the report is made", lambda: [*root.glob("*/toy-report/*/COMPLETE.json")], 120)
    flow.wait("Completed")
    assert len(bench.cluster.jobs(f"{name}-s3-")) == 2, bench.told()


@pytest.mark.drawn
def test_two_minutes_without_a_server_disturb_no_job_and_afterwards_the_states_agree(bench, server, tmp_path):
    bench.environment["PREFECT_WORKER_QUERY_SECONDS"] = "10"  # the default: asking more often Prefect's own gives up
    flow, _, pause = bench.start_flow("watched", tmp_path)
    with server.away():
        time.sleep(AWAY_SECONDS)
        assert "RUNNING" in bench.cluster.jobs("watched-s3-toy-training.").values(), bench.told()
    pause.unlink()
    flow.wait("Completed")
    assert "Crashed" not in flow.history()
    assert len(bench.cluster.jobs("watched-s3-toy-training.")) == len(bench.cluster.jobs("watched-s3-toy-report.")) == 1


@pytest.mark.drawn
def test_with_a_new_database_a_start_repeats_nothing_and_the_study_goes_on(bench, server, tmp_path):
    _, root, _ = bench.start_flow("forgotten", tmp_path)
    (training,) = bench.trains(root)
    bench.stop_workers()
    with server.away():
        server.lose_database()
        os.kill((attempts.newest(training.attempts) or {})["pid"], signal.SIGKILL)
    bench.deploy()
    flow, _, pause = bench.start_flow("forgotten", tmp_path)
    bench.until("the next job trains", lambda: len(attempts.records(training.attempts)) == 2)
    pause.unlink()
    flow.wait("Completed")
    assert attempts.records(training.attempts)[1]["began_at"][0] > 0
    jobs = [len(bench.cluster.jobs(f"forgotten-s3-toy-{stage}.")) for stage in ("training", "report")]
    assert jobs == [2, 1], bench.told()
