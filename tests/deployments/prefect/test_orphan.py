"""A study whose worker was killed: it goes on, and a person's Cancel ends it as any other."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Running

from tests.conftest import REPOSITORY

RUN = """
import sys, threading
from pathlib import Path
from deployments.prefect import flow_run
flow_run.LOOK_SECONDS = flow_run.ASK_SECONDS = 0.2
heard = threading.Event()
flow_run.outlive_worker(heard.set)
file, lines = Path(sys.argv[1]), 0
while not heard.wait(0.001):  # it prints all the time, as a training does
    print("x" * 1000, flush=True)
    print("y" * 1000, file=sys.stderr, flush=True)
    lines += 1
    file.write_text(str(lines))
file.write_text("cancelled")
"""
WORKER = """
import os, subprocess, sys, threading
run = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
threading.Thread(target=run.stderr.read, daemon=True).start()
run.stdout.read()
"""


def test_a_study_whose_worker_was_killed_goes_on_and_hears_of_a_cancel(tmp_path, prefect_server):
    """It was Crashed, "Execution was aborted by Python system exit call", by the next line that it printed; or its
    cancel "timed out", and it trained on."""
    said = tmp_path / "said"
    with temporary_settings({PREFECT_API_URL: prefect_server}), get_client(sync_client=True) as client:
        run = client.create_flow_run(flow(lambda: None, name="orphan"), state=Running())
        of_a_deployment = {"PREFECT__RUNTIME__DEPLOYMENT__ID": "d", "PREFECT__RUNTIME__FLOW_RUN__ID": str(run.id)}
        worker = subprocess.Popen(
            [sys.executable, "-c", WORKER, sys.executable, "-c", RUN, str(said)],
            cwd=REPOSITORY,
            env=os.environ | of_a_deployment | {"PREFECT_API_URL": prefect_server},
            start_new_session=True,
        )
        try:
            _until(lambda: _lines(said) > 100)
            worker.kill()
            worker.wait()
            reached = _lines(said)
            _until(lambda: _lines(said) > reached + 500)
            client.set_flow_run_state(run.id, Cancelling(), force=True)
            _until(lambda: said.read_text() == "cancelled")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)


def _lines(file: Path) -> int:
    """What it has printed; -1 when it has ended."""
    try:
        text = file.read_text()
        return -1 if text == "cancelled" else int(text or 0)
    except FileNotFoundError:
        return 0


def _until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)
