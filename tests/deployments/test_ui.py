"""`ratchet ui`: a server with the UI, a pool, a worker and deployments; it ends as a whole."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import psutil
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import temporary_settings
from prefect.states import Running

from deployments.prefect.embedded import Server, server_here
from deployments.prefect.flow_run import LABEL
from storage import durable, locks
from tests.conftest import REPOSITORY, heed_ctrl_c
from tests.deployments.prefect.test_embedded import _gone, _processes_of, database_in
from tests.deployments.prefect.test_local import eventually
from tests.flows.answers import SMALL


def _command(home: Path, *options: str, cwd: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return subprocess.Popen(
        [sys.executable, "-c", "from flows.command import ratchet; raise SystemExit(ratchet())", "ui", *options],
        cwd=cwd or home,
        env=environment | {"PREFECT_HOME": str(home), "PYTHONPATH": str(REPOSITORY)} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_ctrl_c,
    )


def opened(kept: subprocess.Popen[str]) -> tuple[Server, str]:
    """The server of a UI that is kept open, and the whole address that a person is told."""
    assert kept.stdout
    page = next(line.split()[-1] for line in kept.stdout if line.startswith("Prefect UI: "))
    address, password = page.split("/enter#")
    return Server(f"{address}/api", password), page


def asked(server: Server, what: str, body: Any = None) -> Any:
    """What the API answers to one who has the password."""
    with temporary_settings(server.settings), get_client(sync_client=True) as client:
        return client.request("GET" if body is None else "POST", f"/{what}", json=body).json()


def _killed_run(server: Server, home: Path) -> str:
    """A flow run that is Running, whose process is gone."""
    with temporary_settings(server.settings), get_client(sync_client=True) as client:
        run = client.create_flow_run(flow(lambda: None, name="killed"), state=Running())
        folder = home / f"{run.id}-{client.read_flow_run(run.id).run_count}"
        folder.mkdir()
        durable.write_json(folder / "1.json", {**locks.process_identity(), "process_start": "of a process before"})
        client.update_flow_run_labels(run.id, {LABEL: str(folder)})
    return str(run.id)


def test_the_ui_is_served_with_a_deployment_for_each_profile_and_ctrl_c_leaves_no_process(own_prefect_home, tmp_path):
    """Also where the machine's folder for files of a while holds what another person's Prefect made there."""
    home = own_prefect_home
    (tmp_path / "runner_storage").write_text("nothing can be made below it")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = _command(home, "--port", str(port))
        said, _ = refused.communicate(timeout=120)
        assert refused.returncode == 2 and f"port {port} is taken" in said
    kept = _command(home, "--port", str(port), TMPDIR=str(tmp_path))
    try:
        server, page = opened(kept)
        address = f"http://127.0.0.1:{port}"
        assert server.address == f"{address}/api"
        assert "<html" in httpx.get(address, follow_redirects=True, timeout=300).text.lower()
        found = asked(server, "deployments/filter", {})
        profiles = {file.stem for file in (REPOSITORY / "flows/profiles/robustness").glob("*.yaml")}
        assert {one["name"] for one in found} >= {f"{profile}-local" for profile in profiles}
        assert all(one["pull_steps"] and one["work_pool_name"] == "ratchet" for one in found)
        killed = _killed_run(server, home)
        second = _command(home)
        said, _ = second.communicate(timeout=120)
        assert second.returncode == 2 and f"is open already, at {page}\n" in said
        with database_in(home):
            assert server_here() == server, "commands without a server of their own use it"
        deadline = time.monotonic() + 300
        while asked(server, f"flow_runs/{killed}")["state"]["name"] != "Crashed":
            assert time.monotonic() < deadline, "a run whose process is gone is ended while the UI is open"
            time.sleep(0.1)
        assert len(_processes_of(home)) >= 3, "the command, its server and its worker"
    finally:
        kept.send_signal(signal.SIGINT)
        said, _ = kept.communicate(timeout=120)
    assert said.endswith("ending: a study that runs saves first ...\nended\n")
    assert kept.returncode == 0 and _gone(home, within_seconds=15)
    with database_in(home):
        assert server_here() is None


def test_a_worker_that_ends_by_itself_ends_the_command_with_where_its_log_is(own_prefect_home, tmp_path):
    """Without it nothing would ever run, and the page would say "Late" for ever. The study is one's own."""
    home, own = own_prefect_home, tmp_path / "small.py"
    own.write_text(SMALL)
    kept = _command(home, str(own))
    server, _ = opened(kept)
    found = asked(server, "deployments/filter", {})
    assert [(one["name"], one["entrypoint"]) for one in found] == [("small-local", "small.small")]
    (worker,) = (one for one in psutil.Process(kept.pid).children() if "worker" in one.cmdline())
    worker.kill()
    said, _ = kept.communicate(timeout=120)
    assert kept.returncode == 1 and "Traceback" not in said and _gone(home, within_seconds=15)
    assert "the worker ended by itself (exit code -9)" in said and str(home / "ui-worker.log") in said


FAILS = """
import sys, time
from pathlib import Path
import ratchet as r

@r.stage(torch=False)
def look(run, seed: int):
    if Path(__file__).with_name("broken").exists():
        raise r.CheckFailed("nothing is broken", True, False)
    return {"looked": 1}

@r.study
def fails():
    return look()

if "prefect" in sys.modules:  # its run is Completed before its process ends, and the UI is closed in between
    @fails.on_completion
    def end(*_):
        time.sleep(2)
        Path(__file__).with_name("ended").touch()
"""


def test_what_ran_while_no_server_stood_is_shown_by_the_ui_and_its_retry_goes_on(own_prefect_home, tmp_path):
    (tmp_path / "fails.py").write_text(FAILS)
    (tmp_path / "broken").touch()
    run = [sys.executable, "-m", "flows", "run", "fails.py"]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    environment |= {"PREFECT_HOME": str(own_prefect_home), "PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([*run, "--seed", "7"], cwd=tmp_path, env=environment, timeout=300).returncode == 1
    (tmp_path / "broken").unlink()
    assert subprocess.run(run, cwd=tmp_path, env=environment, timeout=300).returncode == 0
    for seen_before in (False, True):
        kept = _command(own_prefect_home, "fails.py", cwd=tmp_path)
        try:
            server, _ = opened(kept)
            runs = eventually(lambda: len(runs := asked(server, "flow_runs/filter", {})) == 2 and runs)  # noqa: B023
            by_name = {run["name"]: run for run in runs}
            assert {name: run["state"]["name"] for name, run in by_name.items()} == {
                "fails-s7": "Completed" if seen_before else "Failed",
                "fails-s42": "Completed",
            }
            failed = by_name["fails-s7"]
            assert {*failed["tags"]} >= {"fails", "seed-7", "recorded"} and failed["deployment_id"]
            if not seen_before:
                logs, cause = asked(server, "logs/filter", {}), "nothing is broken: measured True, required False"
                assert "ran without Prefect, 20" in failed["state"]["message"] and cause in str(logs)
                shown = {each["key"] for each in asked(server, "artifacts/filter", {})}
                assert shown == {"fails-stages"}, "no report was made"
                retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry"}, "force": True}
                asked(server, f"flow_runs/{failed['id']}/set_state", retry)
                eventually(lambda: asked(server, f"flow_runs/{failed['id']}")["state"]["name"] == "Completed")  # noqa: B023
        finally:
            kept.send_signal(signal.SIGINT)
            kept.communicate(timeout=300)
        assert (tmp_path / "ended").exists(), "ended by a signal: Prefect may call a completed run Crashed for that"
