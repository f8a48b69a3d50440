"""A worker of a pool for the length of one command: it ends with the command, whatever ended that.

    python -m deployments.prefect.worker worker start --pool POOL

is `prefect worker start`, and ends when its standard input does, which the command holds open: a worker that outlived a
killed command would keep its pool from the next one.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.states import StateType

from deployments.prefect.embedded import Server, private_log
from deployments.prefect.flow_run import flow_runs, of_type
from deployments.waits import END_SECONDS, end

SAVE_SECONDS = 120.0
"""How long studies may take to save when the command ends: the step that they are in, and the checkpoint."""


class WorkerEnded(Exception):
    """The worker has ended by itself, and nothing would run any more."""


@contextmanager
def worker(server: Server, pool: str, log: Path, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the pool; `options` are those of `prefect worker start`.

    It runs in a session of its own: Ctrl-C reaches this process alone, which then ends everything in order.
    """
    start = ("worker", "start", "--pool", pool, *options)
    environment = {setting.name: value for setting, value in server.settings.items() if value}
    with private_log(log) as file:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "deployments.prefect.worker", *start],
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=psutil.Process().environ() | environment,
        )
    try:
        yield process
    finally:
        _end(process, pool)


def _end(process: subprocess.Popen[bytes], pool: str) -> None:
    """Ends the worker and what it runs; studies save first, and say so to the server, which must still be there.

    A process whose flow run has ended is waited for: a signal would make of it, in Prefect's worker, a Crashed one.
    """
    assert process.stdin
    try:
        running = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        running = []
    if not _runs_in(pool):
        _, running = psutil.wait_procs(running, timeout=END_SECONDS)
    for child in running:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    psutil.wait_procs(running, timeout=SAVE_SECONDS)
    process.terminate()
    end(process)
    process.stdin.close()


def _runs_in(pool: str) -> bool:
    """Whether a flow run of the pool is under way; a server that does not answer cannot deny it."""
    working = of_type(StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)
    try:
        with get_client(sync_client=True) as client:
            return bool(flow_runs(client, pool, newest_only=True, state=working))
    except (httpx.HTTPError, PrefectException):
        return True


def _end_with_command() -> None:
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(END_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    from prefect.cli import app
    from prefect.settings import PREFECT_HOME

    # of this process alone: Prefect makes a folder of one name there, which is another person's on a shared machine
    tempfile.tempdir = str(PREFECT_HOME.value())
    threading.Thread(target=_end_with_command, daemon=True).start()
    app()
