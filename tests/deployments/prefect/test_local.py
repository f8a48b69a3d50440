"""A study here as a flow run on a real server: what Prefect shows of every end, and the process of the work."""

import os
import signal
import time
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

from deployments.dag.page import load_page
from deployments.dag.walk import Walk
from deployments.prefect.artifacts import StageArtifacts
from deployments.prefect.flow_run import add_tags
from deployments.prefect.local import run_here
from storage import durable
from tests.deployments.toy import Call, Study, call


@pytest.fixture(autouse=True)
def _server(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("deployments.prefect.local.RETRY_DELAY_SECONDS", [0.0, 0.0])
    with temporary_settings({PREFECT_API_URL: prefect_server}):
        yield


def toy_flow(root: Path, *calls: Call, first: Callable[[], None] = lambda: None) -> tuple[Walk, Any]:
    page, study = load_page("tests.deployments.toy"), Study(name="toy", calls=[*calls])
    walk = Walk(root, "toy", study.execution)
    page.walk(study, walk)

    @flow(name="toy", persist_result=False)
    def toy() -> State[Any]:
        add_tags([walk.study, "seed-7"])
        first()
        return run_here(page, study, walk)

    return walk, toy


def run_page(root: Path, *calls: Call) -> tuple[Walk, State[Any]]:
    walk, toy = toy_flow(root, *calls)
    return walk, toy(return_state=True)


def task_states(state: State[Any]) -> dict[str, tuple[str, str, str]]:
    with get_client(sync_client=True) as client:
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_of(state)]))
        runs = client.read_task_runs(flow_run_filter=chosen)
    return {run.name: (run.state.type.value, run.state.name, run.state.message) for run in runs if run.state}


def shown_of(flow_run: UUID) -> dict[str, Any]:
    of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run]))
    with get_client(sync_client=True) as client:
        return {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=of_run)}


def flow_run_of(state: State[Any]) -> UUID:
    return UUID(str(state.state_details.flow_run_id))


def test_a_task_run_shows_its_stage_state_cause_and_log(tmp_path):
    ends = {
        "finished": ("COMPLETED", "Completed"),
        "out_of_time": ("CANCELLED", "AwaitingRetry"),
        "check_failed": ("FAILED", "Failed"),
        "bad_input": ("FAILED", "BadInput"),
        "crashed": ("CRASHED", "Crashed"),
    }
    _, state = run_page(tmp_path, *(call(f"s-{end.replace('_', '-')}", end) for end in ends))
    shown = eventually(lambda: len(found := task_states(state)) == len(ends) and found)
    assert {name.partition(" ")[0][2:].replace("-", "_"): each[:2] for name, each in shown.items()} == ends
    (failed,) = (each[2] for name, each in shown.items() if "check-failed" in name)
    assert "weights moved: measured 0, required more than 0" in failed and str(tmp_path) in failed
    assert state.name == "BadInput"


def test_a_killed_stage_is_tried_again_and_prefect_is_not_in_the_process_of_the_work(tmp_path):
    walk, state = run_page(tmp_path, call("killed", "killed", fails_until=1), call("other", "without-prefect"))
    assert state.name == "Completed", state.message
    records = [durable.read_json(file) for file in sorted(walk.handles[0].run.attempts.glob("*.json"))]
    assert [record["end_state"] for record in records] == [None, "finished"]
    assert len({os.getpid(), *(record["pid"] for record in records)}) == 3


def test_a_stage_that_is_killed_each_time_is_a_crash_that_says_so(tmp_path):
    walk, state = run_page(tmp_path, call("killed", "killed", fails_until=9))
    assert state.name == "Crashed" and "the process of the stage ended by SIGKILL" in str(state.message)
    assert len([*walk.handles[0].run.attempts.glob("*.json")]) == 3


def test_a_signal_reaches_the_stage(tmp_path):
    """Ctrl-C comes to the process that a person sees."""
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # what a shell starts in the background ignores it
    try:
        walk, state = run_page(tmp_path, call("asked", "asked-to-stop"))
    finally:
        signal.signal(signal.SIGINT, before)
    assert state.name == "Cancelled" and "Ctrl-C" in str(state.message)
    assert durable.read_json(walk.handles[0].run.attempts / "0001.json")["end_state"] == "interrupted"


def test_the_flow_run_keeps_its_tags_gets_the_study_s_and_shows_the_result_as_a_table(tmp_path):
    with tags("of-the-deployment"):
        _, state = run_page(tmp_path, call("only"))
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(flow_run_of(state)).tags == ["of-the-deployment", "toy", "seed-7"]
    shown = shown_of(flow_run_of(state))
    assert set(shown) == {"toy-only-result", "toy-study"}
    assert "finished" in str(shown["toy-only-result"].data) and shown["toy-only-result"].task_run_id
    study = shown["toy-study"]
    assert (study.data, study.description, study.task_run_id) == (100.0, "the whole study: 1 of 1 stages", None)


def test_a_second_start_shows_what_is_finished_with_its_results_and_what_each_stage_read(tmp_path):
    """A page without stages looks as if nothing had ever been done."""
    calls = [call("first", cell="one"), call("last", "finished", "first")]
    _, began = run_page(tmp_path, *calls)
    walk, state = run_page(tmp_path, *calls)
    first, last = (f"{handle.label} {handle.run.fingerprint[:12]}" for handle in walk.handles)
    shown = eventually(lambda: len(found := task_states(state)) == 2 and found)
    paths = [str(handle.run.path) for handle in walk.handles]
    assert shown == {first: ("COMPLETED", "Cached", paths[0]), last: ("COMPLETED", "Cached", paths[1])}
    assert not (walk.handles[0].run.attempts / "0002.json").exists(), "nothing was done again"
    for ended in (began, state):
        assert shown_of(flow_run_of(ended)).keys() == {"toy-first-one-result", "toy-last-result", "toy-study"}
    with get_client(sync_client=True) as client:
        chosen = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_of(state)]))
        by_name = {run.name: run for run in client.read_task_runs(flow_run_filter=chosen)}
    read = [str(given.id) for given in by_name[last].task_inputs["wait_for"]]
    assert read == [str(by_name[first].id)], "the graph draws an edge"
    assert not by_name[first].task_inputs.get("wait_for")


def test_a_cancelled_run_is_told_as_cancelled_and_goes_on_when_it_is_started_again(tmp_path):
    """A person cancels in Prefect, whose worker sends SIGTERM to the process."""

    def cancel() -> None:
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(runtime.flow_run.id, Cancelling(), force=True)

    _, toy = toy_flow(tmp_path, call("only", "sigterm"), first=cancel)
    state = toy(return_state=True)
    assert (state.type, state.name) == (StateType.CANCELLED, "Cancelled")
    assert str(state.message).startswith("cancelled; what is done is kept, and a new start goes on\nonly: stopped")


def test_the_progress_of_a_finished_stage_is_full_although_it_counted_no_steps(tmp_path):
    walk, state = run_page(tmp_path, call("only"))
    with get_client(sync_client=True) as client:
        StageArtifacts(client, walk.handles[0].run, flow_run_of(state)).progress()
    shown = shown_of(flow_run_of(state))
    assert (shown["toy-only-progress"].data, shown["toy-only-progress"].description) == (100.0, "only: finished")


def test_a_retry_leaves_no_card_of_the_start_before(tmp_path, monkeypatch):
    """Seen after cancel and retry: "8 of 15 stages, at least 6.8 s left" on a run that was Completed."""
    monkeypatch.setattr("deployments.prefect.local.RETRY_DELAY_SECONDS", [])
    walk, toy = toy_flow(tmp_path, call("only", "lost-connection", fails_until=1))
    flow_run = flow_run_of(toy(return_state=True))
    with get_client(sync_client=True) as client:
        durable.write_json(walk.handles[0].run.progress_file, {"step": 1, "total": 9, "eta_seconds": 60})
        StageArtifacts(client, walk.handles[0].run, flow_run).progress()
        shown = {key: str(artifact.description) for key, artifact in shown_of(flow_run).items()}
        assert shown["toy-study"] == "the whole study: 0 of 1 stages"
        assert "1/9" in shown["toy-only-progress"] and "left" not in shown["toy-only-progress"], "nothing is under way"
        client.set_flow_run_state(flow_run, Pending(), force=True)
        run_flow(toy, flow_run=client.read_flow_run(flow_run))
    assert sorted((key, str(artifact.description)) for key, artifact in shown_of(flow_run).items()) == [
        ("toy-only-result", f"`{walk.handles[0].run.path}`"),
        ("toy-study", "the whole study: 1 of 1 stages"),
    ]


def eventually(look: Callable[[], Any]) -> Any:
    """Task runs reach the server through a queue."""
    deadline = time.monotonic() + 300
    while not (found := look()) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found
