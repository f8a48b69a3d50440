"""A study that was killed stayed Running in Prefect for ever, also after its next start had finished."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Completed, Running

from deployments.prefect.flow_run import FOLDER, LABEL, end_killed
from flows import command
from storage import durable, locks

STUDY = """
import time, pathlib, ratchet as r
@r.stage(needs="cpu", torch=False)
def only(run):
    while not (pathlib.Path(__file__).parent / "go").exists():
        run.stop.check()
        time.sleep(0.02)
    return {"done": 1}
@r.study
def killed_study():
    return only()
"""


@pytest.fixture
def client(prefect_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[SyncPrefectClient]:
    monkeypatch.setenv("PREFECT_API_URL", prefect_server)  # of the command that is killed
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        yield client


def test_a_killed_study_is_crashed_when_the_next_start_comes_and_one_that_lives_is_left_alone(client, tmp_path, forks):
    (tmp_path / "killed_study.py").write_text(STUDY)
    name = f"killed-{os.getpid()}"
    arguments = ["run", str(tmp_path / "killed_study.py"), "--root", str(tmp_path / "runs"), "--set", f"name={name}"]
    seen: list[str] = []

    def strike() -> bool:
        begun = [*tmp_path.glob(f"runs/{name}/killed-study-only/*/stage.json")]
        if begun and [*_tasks_of(client, *_runs(client, name))] == ["Running"]:
            end_killed(name)
            seen.extend(_states(client, name))
        return bool(seen)

    assert forks.run(tmp_path, *arguments, strike=strike)[0] == -signal.SIGKILL
    assert seen == ["Running"], "its lock is held"
    (killed,) = _runs(client, name)
    assert killed.state and killed.state.name == "Running", "Prefect itself hears of no SIGKILL"

    (stage,) = tmp_path.glob(f"runs/{name}/killed-study-only/*")
    while locks.holder(stage / "locks"):
        time.sleep(0.05)
    record = durable.read_json(stage / "attempts/0001.json")
    assert record["end_state"] == "sigterm", "the process of its work saved and ended with it"

    (tmp_path / "go").touch()
    assert command.ratchet(arguments) == 0
    killed = client.read_flow_run(killed.id)
    assert killed.state and (killed.state.type.value, killed.state.name) == ("CRASHED", "Crashed")
    assert "was killed (SIGKILL, no memory left, or a power cut), last seen at 20" in str(killed.state.message)
    assert "the same study, started again, goes on" in str(killed.state.message)
    assert _tasks_of(client, killed) == ["Crashed"]
    assert sorted(_states(client, name)) == ["Completed", "Crashed"]


def test_after_a_power_cut_the_heartbeat_decides(client, tmp_path):
    """The machine was started again: nobody can ask the process any more, and another host's may have its number."""
    run, folder = _running(client, tmp_path)
    identity = {**locks.process_identity(), "boot_id": "before the power cut"}
    durable.write_json(folder / "1.json", identity)
    (folder / "1.alive").touch()
    end_killed(dead_after_seconds=0.0)
    assert _state(client, run) == "Running", "not known at once"
    end_killed(dead_after_seconds=0.3)
    assert _state(client, run) == "Crashed" and not folder.exists()


def test_a_run_that_is_ended_while_its_lock_is_watched_keeps_that_end(client, tmp_path):
    run, folder = _running(client, tmp_path)
    durable.write_json(folder / "1.json", {"boot_id": "another host's"})
    ends = threading.Timer(0.1, client.set_flow_run_state, (run.id, Completed()), {"force": True})
    ends.start()
    end_killed(dead_after_seconds=1.0)
    ends.join()
    assert _state(client, run) == "Completed"


@pytest.mark.parametrize("change", ["gone", "started again", "no folder there", "no study of ours", "held"])
def test_what_nobody_can_say_is_dead_stays_as_it_is(client, tmp_path, change):
    run, folder = _running(client, tmp_path)
    gone = {**locks.process_identity(), "process_start": "of a process before"}
    durable.write_json(folder / "1.json", locks.process_identity() if change == "held" else gone)
    if change == "started again":
        before = folder.rename(folder.with_name(f"{run.id}-{run.run_count - 1}"))
        client.update_flow_run_labels(run.id, {LABEL: str(before)})
    if change == "no folder there":
        folder.rename(tmp_path / "elsewhere")
    if change == "no study of ours":
        client.update_flow_run_labels(run.id, {LABEL: ""})
    end_killed(dead_after_seconds=0.0)
    assert _state(client, run) == ("Crashed" if change == "gone" else "Running")


def _running(client: SyncPrefectClient, root: Path) -> tuple[FlowRun, Path]:
    """A flow run that is Running, and the lock folder that its label names."""
    run = client.create_flow_run(flow(lambda: None, name="killed"), state=Running())
    run = client.read_flow_run(run.id)
    folder = root / FOLDER / f"{run.id}-{run.run_count}"
    folder.mkdir(parents=True)
    client.update_flow_run_labels(run.id, {LABEL: str(folder)})
    return run, folder


def _state(client: SyncPrefectClient, run: FlowRun) -> str:
    state = client.read_flow_run(run.id).state
    assert state is not None
    return state.name


def _runs(client: SyncPrefectClient, tag: str) -> list[FlowRun]:
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=[tag])))


def _states(client: SyncPrefectClient, tag: str) -> list[Any]:
    return [run.state.name for run in _runs(client, tag) if run.state]


def _tasks_of(client: SyncPrefectClient, *runs: FlowRun) -> list[Any]:
    """The states of the task runs of these flow runs."""
    ids: list[UUID] = [run.id for run in runs]
    found = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids))) if ids else []
    return [run.state.name for run in found if run.state]
