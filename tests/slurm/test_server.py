"""A Prefect server that goes away, and one that forgets everything: the jobs go on, and nothing starts twice."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.slurm.harness import Bench, Dispatched, Run, Server, toy_study
from tests.slurm.postgres import NoPostgres, postgres

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


def test_on_postgresql_a_study_runs_and_a_server_that_dies_is_no_loss(_bench, tmp_path, monkeypatch):
    with ExitStack() as ends:
        try:
            address = ends.enter_context(postgres())
        except NoPostgres as error:
            pytest.skip(f"no PostgreSQL here: {error}")
        home = tmp_path / "home"
        home.mkdir()
        server = Server(home, address)
        server.start()
        ends.callback(server.kill)
        bench = Bench(_bench.cluster, server.address, tmp_path / "own")
        bench.deploy()
        ends.enter_context(bench.at_hand(monkeypatch))
        ends.callback(bench.stop_workers)
        bench.ensure_worker()
        one = bench.dispatch(tmp_path / "runs", pauses=True)
        one.training_began()
        with server.away():
            pass
        one.go_on()
        one.run.wait("Completed")
        assert len(one.submissions()) == 1 and not list(home.glob("prefect.db*")), bench.told()


@pytest.mark.drawn
def test_two_minutes_without_a_server_disturb_no_job_and_afterwards_the_states_agree(bench, server, tmp_path):
    """One job starts, one trains and one ends while the server is away; and a study flow looks on."""
    often = bench.environment["PREFECT_WORKER_QUERY_SECONDS"]
    bench.environment["PREFECT_WORKER_QUERY_SECONDS"] = "10"  # the default: asking more often Prefect's own gives up
    bench.ensure_worker("ratchet")
    bench.environment["PREFECT_WORKER_QUERY_SECONDS"] = often
    bench.ensure_worker()
    pause = tmp_path / "pause"
    pause.touch()
    study = toy_study("watched", pauses_while=str(pause))
    flow = bench.run_deployment("toy/toy", study=study.model_dump(mode="json"), root=str(tmp_path / "watched"))
    (training,) = bench.until("the study's training runs", lambda: running(bench, "watched toy-training"))
    ends = bench.dispatch(tmp_path / "ends", pauses=True)
    ends.training_began()
    ends.run.wait("Running")
    bench.cluster.hold()
    starts = bench.dispatch(tmp_path / "starts", steps=20)
    starts.job("PENDING")

    began = time.monotonic()
    with server.away():
        bench.cluster.release()
        starts.job("COMPLETED")
        ends.go_on()
        ends.job("COMPLETED")
        time.sleep(max(0.0, AWAY_SECONDS - (time.monotonic() - began)))
        assert "RUNNING" in bench.cluster.jobs("watched-s3-toy-training.").values(), bench.told()
    pause.unlink()
    for one in (starts, ends):
        one.run.wait("Completed")
        assert len(one.submissions()) == len(one.jobs()) == 1
        assert not {"Crashed", "Failed", "AwaitingRetry"} & set(one.run.history()), one.run.history()
    training.wait("Completed")
    flow.wait("Completed")
    assert "Crashed" not in training.history() + flow.history()
    assert len(bench.cluster.jobs("watched-s3-toy-training.")) == len(bench.cluster.jobs("watched-s3-toy-report.")) == 1


def running(bench: Bench, name: str) -> list[Run]:
    return [one for one in bench.runs_of(name) if one.state == "Running"]


@pytest.mark.drawn
def test_with_a_new_database_advance_starts_nothing_twice_and_the_study_goes_on(bench, server, tmp_path):
    bench.ensure_worker()
    runs = bench.dispatch(tmp_path / "runs", pauses=True)
    dies = bench.dispatch(tmp_path / "dies", pauses=True)
    for one in (runs, dies):
        one.training_began()
    bench.cluster.hold()
    waits = bench.dispatch(tmp_path / "waits")
    waits.job("PENDING")

    bench.stop_workers()
    with server.away():
        server.lose_database()
        os.kill(dies.record()["pid"], signal.SIGKILL)
    bench.deploy()
    bench.ensure_worker()

    def stand(one: Dispatched) -> str:
        return one.advance().standings[one.training.run.fingerprint].stand

    bench.until("the dead job was seen to have ended", lambda: dies.jobs()[dies.job()] == "FAILED")
    for _ in range(3):
        assert [stand(one) for one in (runs, waits, dies)] == ["under way"] * 3
    assert [len(one.submissions()) for one in (runs, waits)] == [1, 1], "their jobs are the old ones"
    runs.go_on()
    dies.go_on()
    bench.cluster.release()
    bench.until("each is finished", lambda: {stand(one) for one in (runs, waits, dies)} == {"finished"})
    assert [len(one.jobs()) for one in (runs, waits, dies)] == [1, 1, 2], bench.told()
    assert dies.records()[1]["began_at"][0] > 0
    for one in (runs, waits, dies):
        reported = bench.until("its report too", lambda one=one: one.advance().handles[1].finished or None)
        assert reported and len(bench.cluster.jobs(f"{one.study.name}-s3-toy-report.")) == 1
