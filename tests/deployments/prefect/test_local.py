"""Local dispatch on a real server: every end of a stage, what Prefect shows, and what it means for the others."""

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, runtime, tags
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId
from prefect.flow_engine import run_flow
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Pending, State, StateType
from prefect.utilities.math import poisson_interval
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from deployments.dag.walk import Handle, Walk
from deployments.prefect.artifacts import StageArtifacts
from deployments.prefect.flow_run import add_tags
from deployments.prefect.local import run_here
from flows import command
from storage import durable, locks
from tasks.stage.outcome import state_named
from tasks.stage.run import Stage
from tests.deployments.toy import ToyConfig

ENDS = {
    "finished": ("COMPLETED", "Completed", 0),
    "out_of_time": ("CANCELLED", "AwaitingRetry", 75),
    "sigterm": ("CANCELLED", "AwaitingRetry", 75),
    "interrupted": ("CANCELLED", "Cancelled", 130),
    "check_failed": ("FAILED", "Failed", 1),
    "no_progress": ("FAILED", "Failed", 1),
    "numerical_failure": ("FAILED", "Failed", 1),
    "not_learning": ("FAILED", "Failed", 1),
    "bad_input": ("FAILED", "BadInput", 2),
    "crashed": ("CRASHED", "Crashed", 1),
}


def toy_stage(name: str) -> Stage:
    return Stage(name, ToyConfig, "tests.deployments.toy:work")


@pytest.fixture(autouse=True)
def _server(prefect_server: str) -> Iterator[None]:
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        yield


def run_page(root: Path, page: Callable[[Walk], None]) -> tuple[Walk, State[Any]]:
    walk = Walk(root, "toy")
    page(walk)

    @flow(name="toy", persist_result=False)
    def toy() -> State[Any]:
        add_tags([walk.study, "seed-7"])
        return run_here(walk)

    state = toy(return_state=True)
    return walk, state


def task_states(state: State[Any]) -> dict[str, tuple[str, str, str]]:
    with get_client(sync_client=True) as client:
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(str(state.state_details.flow_run_id))]))
        runs = client.read_task_runs(flow_run_filter=chosen)
    return {run.name: (run.state.type.value, run.state.name, run.state.message) for run in runs if run.state}


@pytest.mark.parametrize("end", ENDS)
def test_attempt_prefect_state_exit_code_and_marker_agree(end, tmp_path):
    here, state = run_page(tmp_path, lambda stage: stage(toy_stage("only"), ToyConfig(ends=end)))
    kind, name, code = ENDS[end]
    run = here.handles[0].run
    record = durable.read_json(run.attempts / "0001.json")
    assert (record["end_state"], record["exit_code"]) == (end, code)
    assert (state.type.value, state.name, state_named(state.name).exit_code) == (kind, name, code)
    assert run.marker_file.exists() == (end == "finished")
    if code in (1, 2):
        assert record["diagnosis"]["summary"] in (state.message or "") and record["diagnosis"]["resolution"]


def test_a_task_run_shows_its_stage_state_cause_and_log(tmp_path):
    _, state = run_page(tmp_path, lambda stage: stage(toy_stage("only"), ToyConfig(ends="check_failed")))
    ((name, shown),) = _eventually(lambda: task_states(state)).items()
    assert name.startswith("only ") and shown[:2] == ("FAILED", "Failed")
    assert "weights moved: measured 0, required more than 0" in shown[2] and str(tmp_path) in shown[2]


def test_what_fails_outside_an_attempt_is_a_crash_that_is_told(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("a bug of ours")

    monkeypatch.setattr("deployments.prefect.local.attempt", broken)
    _, state = run_page(tmp_path, lambda stage: stage(toy_stage("only"), ToyConfig(ends="finished")))
    assert (state.name, state_named(state.name).exit_code) == ("Crashed", 1)
    assert "only: KeyError: 'a bug of ours'" in (state.message or "")


def test_a_failure_names_its_log_and_what_ended_two_stages_is_said_once(tmp_path):
    def page(stage: Walk) -> None:
        for name in ("first", "second"):
            stage(toy_stage(name), ToyConfig(ends="bad_input", number=len(name)))

    here, state = run_page(tmp_path, page)
    first, *logs = (state.message or "").splitlines()
    assert first == "first, second: the file is empty. Correct the input and start the same command."
    assert logs == [f"log: {handle.run.attempts / '0001.log'}" for handle in here.handles]


def test_stages_that_need_a_failed_one_are_skipped_and_the_others_still_run(tmp_path):
    def page(stage: Walk) -> None:
        first = stage(toy_stage("first"), ToyConfig(ends="finished"))
        failed = stage(toy_stage("failed"), ToyConfig(ends="check_failed"), first=first)
        stage(toy_stage("needs-failed"), ToyConfig(ends="finished"), failed=failed)
        stage(toy_stage("needs-first"), ToyConfig(ends="finished"), first=first)

    here, state = run_page(tmp_path, page)
    assert [handle.finished for handle in here.handles] == [True, False, False, True]
    assert not here.handles[2].run.path.exists() and state_named(state.name).exit_code == 1


def test_a_signal_stops_the_study(tmp_path):
    def page(stage: Walk) -> None:
        stage(toy_stage("stopped"), ToyConfig(ends="sigterm"))
        stage(toy_stage("other"), ToyConfig(ends="finished"))

    here, state = run_page(tmp_path, page)
    assert not here.handles[1].run.path.exists() and state_named(state.name).exit_code == 75


def test_bad_input_outweighs_a_failure(tmp_path):
    def page(stage: Walk) -> None:
        stage(toy_stage("failed"), ToyConfig(ends="check_failed"))
        stage(toy_stage("bad"), ToyConfig(ends="bad_input"))

    assert state_named(run_page(tmp_path, page)[1].name).exit_code == 2


def test_finished_stages_are_never_run_again(tmp_path):
    def page(stage: Walk) -> Handle:
        return stage(toy_stage("only"), ToyConfig(ends="finished"))

    run_page(tmp_path, page)
    here, state = run_page(tmp_path, page)
    assert state.name == "Completed" and len(list(here.handles[0].run.attempts.glob("*.json"))) == 1


def test_a_failed_stage_that_a_person_starts_again_gets_a_new_generation(tmp_path):
    for _ in range(2):
        here, _ = run_page(tmp_path, lambda stage: stage(toy_stage("only"), ToyConfig(ends="check_failed")))
    assert durable.read_json(here.handles[0].run.generation_file)["generation"] == 1


def test_a_lost_connection_is_retried(tmp_path, monkeypatch):
    monkeypatch.setattr("deployments.prefect.local.RETRY_DELAY_SECONDS", [0, 0])
    config = ToyConfig(ends="lost-connection", fails_until=1)
    here, state = run_page(tmp_path, lambda stage: stage(toy_stage("only"), config))
    assert state.name == "Completed" and len(list(here.handles[0].run.attempts.glob("*.json"))) == 2


def test_the_flow_run_keeps_its_tags_gets_the_study_s_and_shows_the_result_as_a_table(tmp_path):
    with tags("of-the-deployment"):
        _, state = run_page(tmp_path, lambda stage: stage(toy_stage("only"), ToyConfig(ends="finished")))
    flow_run = UUID(str(state.state_details.flow_run_id))
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(flow_run).tags == ["of-the-deployment", "toy", "seed-7"]
        chosen = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
        shown = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=chosen)}
    assert set(shown) == {"toy-only-result", "toy-study"}
    assert "finished" in str(shown["toy-only-result"].data) and shown["toy-only-result"].task_run_id
    study = shown["toy-study"]
    assert (study.data, study.description, study.task_run_id) == (100.0, "the whole study: 1 of 1 stages", None)


def test_a_second_start_shows_what_is_finished_with_its_results_and_what_each_stage_read(tmp_path):
    """A page without stages looks as if nothing had ever been done."""

    def page(stage: Walk) -> None:
        first = stage(toy_stage("first"), ToyConfig(ends="finished", cell="one"))
        stage(toy_stage("last"), ToyConfig(ends="finished"), first=first)

    _, began = run_page(tmp_path, page)
    here, state = run_page(tmp_path, page)
    first, last = (f"{handle.label} {handle.run.fingerprint[:12]}" for handle in here.handles)
    shown = _eventually(lambda: len(found := task_states(state)) == 2 and found)
    paths = [str(handle.run.path) for handle in here.handles]
    assert shown == {first: ("COMPLETED", "Cached", paths[0]), last: ("COMPLETED", "Cached", paths[1])}
    assert not (here.handles[0].run.attempts / "0002.json").exists(), "nothing was done again"
    with get_client(sync_client=True) as client:
        for ended in (began, state):
            flow_run = UUID(str(ended.state_details.flow_run_id))
            of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
            keys = {artifact.key for artifact in client.read_artifacts(artifact_filter=of_run)}
            assert keys == {"toy-first-one-result", "toy-last-result", "toy-study"}
        runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])))
    by_name = {run.name: run for run in runs}
    read = [str(given.id) for given in by_name[last].task_inputs["wait_for"]]
    assert read == [str(by_name[first].id)], "the graph draws an edge"
    assert not by_name[first].task_inputs.get("wait_for")


def test_a_cancelled_run_is_told_as_cancelled_and_goes_on_when_it_is_started_again(tmp_path):
    """A person cancels in Prefect, whose worker sends SIGTERM to the process."""
    walk = Walk(tmp_path, "toy")
    walk(toy_stage("only"), ToyConfig(ends="sigterm"))

    @flow(name="toy", persist_result=False)
    def toy() -> State[Any]:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(runtime.flow_run.id, Cancelling(), force=True)
        return run_here(walk)

    state = toy(return_state=True)
    assert (state.type, state.name) == (StateType.CANCELLED, "Cancelled")
    assert str(state.message).startswith("cancelled; what is done is kept, and a new start goes on\nonly: stopped")


def test_the_progress_of_a_finished_stage_is_full_although_it_counted_no_steps(tmp_path):
    here, state = run_page(tmp_path, lambda stage: stage(toy_stage("only"), ToyConfig(ends="finished")))
    flow_run = UUID(str(state.state_details.flow_run_id))
    with get_client(sync_client=True) as client:
        StageArtifacts(client, here.handles[0].run, flow_run).progress()
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
        shown = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=of_run)}
    assert (shown["toy-only-progress"].data, shown["toy-only-progress"].description) == (100.0, "only: finished")


def test_a_retry_leaves_no_card_of_the_start_before(tmp_path, monkeypatch):
    """Seen after cancel and retry: "8 of 15 stages, at least 6.8 s left" on a run that was Completed."""
    monkeypatch.setattr("deployments.prefect.local.RETRY_DELAY_SECONDS", [])
    walk = Walk(tmp_path, "toy")
    walk(toy_stage("only"), ToyConfig(ends="lost-connection", fails_until=1))

    @flow(name="toy", persist_result=False)
    def toy() -> State[Any]:
        return run_here(walk)

    failed = toy(return_state=True)
    flow_run = UUID(str(failed.state_details.flow_run_id))
    with get_client(sync_client=True) as client:
        durable.write_json(walk.handles[0].run.progress_file, {"step": 1, "total": 9, "eta_seconds": 60})
        StageArtifacts(client, walk.handles[0].run, flow_run).progress()
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
        shown = {one.key: str(one.description) for one in client.read_artifacts(artifact_filter=of_run)}
        assert shown["toy-study"] == "the whole study: 0 of 1 stages"
        assert "1/9" in shown["toy-only-progress"] and "left" not in shown["toy-only-progress"], "nothing is under way"
        client.set_flow_run_state(flow_run, Pending(), force=True)
        run_flow(toy, flow_run=client.read_flow_run(flow_run))
        shown = [(one.key, str(one.description)) for one in client.read_artifacts(artifact_filter=of_run)]
    assert sorted(shown) == [
        ("toy-only-result", f"`{walk.handles[0].run.path}`"),
        ("toy-study", "the whole study: 1 of 1 stages"),
    ]


def _eventually(look: Callable[[], Any]) -> Any:
    """Task runs reach the server through a queue."""
    import time

    deadline = time.monotonic() + 300
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def test_a_file_that_changes_while_it_is_read_never_gives_a_marker(tmp_path):
    (tmp_path / "text.txt").write_text("the text")
    config = ToyConfig(ends="reads-a-file-that-changes", reads=[str(tmp_path / "text.txt")])
    here, state = run_page(tmp_path / "runs", lambda stage: stage(toy_stage("only"), config))
    assert state.name == "BadInput" and "changed since it was started" in (state.message or "")
    assert not here.handles[0].run.marker_file.exists()


def test_a_second_start_takes_no_stage_from_the_first(tmp_path):
    """It ends at the first stage that is held: going on with the next one would make the first start fail there."""

    def page(stage: Walk) -> None:
        stage(toy_stage("held"), ToyConfig(ends="finished"))
        stage(toy_stage("other"), ToyConfig(ends="otherwise"))

    walk = Walk(tmp_path, "toy")
    held = walk(toy_stage("held"), ToyConfig(ends="finished")).run.path
    held.mkdir(parents=True)
    lock = locks.acquire(held / "locks")
    try:
        here, state = run_page(tmp_path, page)
    finally:
        lock.release()
    assert state.name == "Held" and "held by a live process" in (state.message or "")
    assert not here.handles[1].run.path.exists()


LOADS = """
import os
import torch
import ratchet as r
from torch.utils.data import DataLoader, TensorDataset

@r.stage()
def fit(run):
    loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=16, num_workers=2, multiprocessing_context="fork")
    return {"sum": sum(batch[0].sum().item() for _ in range(2) for batch in loader)}

@r.study
def loads():
    return fit()
"""


def test_a_loader_with_workers_works_in_a_stage(tmp_path, monkeypatch, capsys):
    """Seen: each child that a process with Prefect forks ended with 1, `DataLoader worker exited unexpectedly`."""
    (tmp_path / "loads.py").write_text(LOADS)
    monkeypatch.chdir(tmp_path)
    assert command.ratchet(["run", "loads.py"]) == 0, capsys.readouterr().err
    assert "sum 512.0" in capsys.readouterr().out


def test_what_prefect_draws_in_threads_is_not_drawn_from_a_stage_s_generator():
    """Seen: a websocket's ping each 20 s moved Python's generator, and with it what a stage draws."""

    async def ping() -> None:
        async with serve(lambda connection: connection.wait_closed(), "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            async with connect(f"ws://127.0.0.1:{port}") as connection:
                await (await connection.ping())

    before = random.getstate()
    asyncio.run(ping())
    poisson_interval(1.0)
    assert random.getstate() == before
