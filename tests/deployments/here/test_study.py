"""A study that runs here, without Prefect: every end of a stage, and what it means for the others."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deployments.dag.page import load_page
from deployments.dag.walk import Walk
from deployments.here import study as here
from storage import durable, locks
from tasks.stage.outcome import PrefectState
from tests.conftest import REPOSITORY
from tests.deployments.toy import Call, Study, call

ENDS = {
    "finished": ("Completed", 0),
    "out_of_time": ("AwaitingRetry", 75),
    "sigterm": ("AwaitingRetry", 75),
    "interrupted": ("Cancelled", 130),
    "check_failed": ("Failed", 1),
    "no_progress": ("Failed", 1),
    "numerical_failure": ("Failed", 1),
    "not_learning": ("Failed", 1),
    "bad_input": ("BadInput", 2),
    "crashed": ("Crashed", 1),
}


def run(root: Path, *calls: Call) -> tuple[Walk, PrefectState, str]:
    walk = Walk(root, "toy")
    load_page("tests.deployments.toy").walk(Study(name="toy", calls=[*calls]), walk)
    return walk, *here.run_study(walk, here.ThisProcess())


@pytest.mark.parametrize("end", ENDS)
def test_attempt_state_exit_code_and_marker_agree(end, tmp_path):
    walk, state, message = run(tmp_path, call("only", end))
    directory = walk.handles[0].run
    record = durable.read_json(directory.attempts / "0001.json")
    assert (record["end_state"], record["exit_code"]) == (end, ENDS[end][1])
    assert (state.name, state.exit_code) == ENDS[end]
    assert directory.marker_file.exists() == (end == "finished")
    if state.exit_code in (1, 2):
        assert record["diagnosis"]["summary"] in message and record["diagnosis"]["resolution"]


def test_what_fails_outside_an_attempt_is_a_crash_that_is_told(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise KeyError("a bug of ours")

    monkeypatch.setattr(here, "attempt", broken)
    _, state, message = run(tmp_path, call("only"))
    assert (state.name, state.exit_code) == ("Crashed", 1)
    assert "only: KeyError: 'a bug of ours'" in message


def test_a_failure_names_its_log_and_what_ended_two_stages_is_said_once(tmp_path):
    walk, _, message = run(tmp_path, call("first", "bad_input", number=1), call("second", "bad_input", number=2))
    first, *logs = message.splitlines()
    assert first == "first, second: the file is empty. Correct the input and start the same command."
    assert logs == [f"log: {handle.run.attempts / '0001.log'}" for handle in walk.handles]


def test_stages_that_need_a_failed_one_are_skipped_and_the_others_still_run(tmp_path):
    calls = [call("first"), call("failed", "check_failed", "first"), call("needs-failed", "finished", "failed")]
    walk, state, _ = run(tmp_path, *calls, call("needs-first", "finished", "first"))
    assert [handle.finished for handle in walk.handles] == [True, False, False, True]
    assert not walk.handles[2].run.path.exists() and state.exit_code == 1


def test_a_signal_stops_the_study(tmp_path):
    walk, state, _ = run(tmp_path, call("stopped", "sigterm"), call("other"))
    assert not walk.handles[1].run.path.exists() and state.exit_code == 75


def test_finished_stages_are_never_run_again(tmp_path):
    run(tmp_path, call("only"))
    walk, state, _ = run(tmp_path, call("only"))
    assert state.name == "Completed" and len(list(walk.handles[0].run.attempts.glob("*.json"))) == 1


def test_a_failed_stage_that_a_person_starts_again_gets_a_new_generation(tmp_path):
    for _ in range(2):
        walk, *_ = run(tmp_path, call("only", "check_failed"))
    assert durable.read_json(walk.handles[0].run.generation_file)["generation"] == 1


def test_a_lost_connection_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr(here, "RETRY_DELAY_SECONDS", [0, 0])
    walk, state, _ = run(tmp_path, call("only", "lost-connection", fails_until=2))
    assert state.name == "Completed" and len(list(walk.handles[0].run.attempts.glob("*.json"))) == 3


def test_a_file_that_changes_while_it_is_read_never_gives_a_marker(tmp_path):
    (tmp_path / "text.txt").write_text("the text")
    read = call("only", "reads-a-file-that-changes")
    read = read.model_copy(update={"config": read.config.model_copy(update={"reads": [str(tmp_path / "text.txt")]})})
    walk, state, message = run(tmp_path / "runs", read)
    assert state.name == "BadInput" and "changed since it was started" in message
    assert not walk.handles[0].run.marker_file.exists()


def test_a_second_start_takes_no_stage_from_the_first(tmp_path):
    """It ends at the first stage that is held: going on with the next one would make the first start fail there."""
    calls = [call("held"), call("other", "otherwise")]
    walk = Walk(tmp_path, "toy")
    load_page("tests.deployments.toy").walk(Study(name="toy", calls=calls), walk)
    held = walk.handles[0].run.path
    held.mkdir(parents=True)
    lock = locks.acquire(held / "locks")
    try:
        walk, state, message = run(tmp_path, *calls)
    finally:
        lock.release()
    assert state.name == "Held" and "held by a live process" in message
    assert not walk.handles[1].run.path.exists()


FOREIGN = """
import ratchet as r
@r.stage(torch=False)
def look(run):
    import sys
    return {"imported": sorted({"prefect", "httpx", "sqlalchemy", "fastapi"} & {*sys.modules})}
@r.study
def looks():
    return look()
"""


def ran(folder: Path, *words: str, home: Path) -> subprocess.CompletedProcess[str]:
    """`ratchet run WORDS` where no server is configured."""
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return subprocess.run(
        [sys.executable, "-m", "flows", "run", *words],
        cwd=folder,
        env=environment | {"PREFECT_HOME": str(home), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_where_no_server_stands_nothing_of_prefect_is_imported_and_none_is_started(tmp_path):
    """It took 13 to 21 s before the first fold on a loaded machine."""
    (tmp_path / "looks.py").write_text(FOREIGN)
    (home := tmp_path / "prefect").mkdir()
    (home / "prefect.db").touch()
    done = ran(tmp_path, "looks.py", home=home)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = tmp_path.glob("runs/looks/looks-look/*/result.json")
    assert durable.read_json(result) == {"imported": []}
    assert [file.name for file in home.iterdir()] == ["prefect.db"], "no log of a server, no pipe to one"


LOADS = """
import ratchet as r
import torch
from torch.utils.data import DataLoader, TensorDataset
@r.stage()
def fit(run):
    loader = DataLoader(TensorDataset(torch.ones(64, 4)), batch_size=16, num_workers=2, multiprocessing_context="fork")
    return {"sum": sum(batch[0].sum().item() for _ in range(2) for batch in loader)}
@r.study
def loads():
    return fit()
"""


@pytest.mark.parametrize("options", [[], ["--prefect"]], ids=["here", "as a flow run"])
def test_a_loader_with_workers_works_in_a_stage(options, tmp_path, own_prefect_home):
    """Seen: each child that a process with Prefect forks ended with 1, `DataLoader worker exited unexpectedly`."""
    (tmp_path / "loads.py").write_text(LOADS)
    done = ran(tmp_path, "loads.py", *options, home=own_prefect_home)
    assert done.returncode == 0 and "sum 512.0" in done.stdout, done.stdout + done.stderr
