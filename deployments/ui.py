"""Prefect with its UI on this machine, for as long as a command runs: a server, the pool and a worker.

The server has the database of the commands that bring a server of their own, so that their runs are seen here too;
while this one answers, they use it (`deployments.prefect.embedded`).
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from deployments.deploy import STUDIES, deploy, make_pool
from deployments.prefect.embedded import Server, private_log, server_here, started_server
from deployments.prefect.flow_run import beside, best_effort, end_killed
from deployments.prefect.generate import Profile, study_deployment
from storage import locks
from storage.errors import BadInput, Held

FOLDER = "ratchet-ui"
"""In PREFECT_HOME: who keeps the UI open."""
PORT = 4200
PORTS_TRIED = 50
LOOK_EVERY_SECONDS, END_KILLED_EVERY_SECONDS = 1.0, 10.0
SAVE_SECONDS = 120.0
"""How long studies may take to save when the command ends: the step that they are in, and the checkpoint."""


class WorkerEnded(Exception):
    """The worker has ended by itself, and nothing would run any more."""


def keep_ui(profiles: Iterable[Profile], port: int | None, ready: Callable[[str], None]) -> None:
    """Serves the UI at `port` (None: 4200, or the next one that is free) until interrupted; `ready` gets its address.

    At the end what runs is asked to save, and waited for. Raises BadInput where a server is configured or kept here
    already, or the port is taken; WorkerEnded when the worker ends by itself.
    """
    if configured := PREFECT_API_URL.value():
        raise BadInput(
            f"PREFECT_API_URL={configured} names a server, which has a UI of its own. Unset it to start one here, or "
            "make the deployments there: `ratchet deploy`"
        )
    home = PREFECT_HOME.value()
    folder = home / FOLDER
    try:
        lock = locks.acquire(folder / "locks")
    except Held:
        raise BadInput(f"the UI is open already{f', at {there.page}' if (there := server_here()) else ''}") from None
    try:
        if there := server_here():
            raise BadInput(
                f"the Prefect server at {there.address} has the database of PREFECT_HOME={home}, and two would lock "
                f"each other out: end it, or set PREFECT_API_URL to it and make the deployments there: `ratchet deploy`"
            )
        with started_server(home / "ui-server.log", _free_port(port)) as server:
            with temporary_settings(server.settings):
                with get_client(sync_client=True) as client:
                    make_pool(client, STUDIES)
                    for _ in deploy(client, (study_deployment(profile, "local") for profile in profiles)):
                        pass
                with _worker(server, home / "ui-worker.log") as worker:
                    ready(server.page)
                    beside(_end_killed)
                    while worker.poll() is None:
                        time.sleep(LOOK_EVERY_SECONDS)
            raise WorkerEnded(
                f"the worker ended by itself (exit code {worker.returncode}), and nothing runs without it. "
                f"{home / 'ui-worker.log'} says why. Start this again, and retry the study that ran: it goes on"
            )
    finally:
        lock.release()


def _end_killed() -> None:
    """Ends killed runs now and then: one that is killed while the UI is open may have no next start."""
    while True:
        best_effort(end_killed)
        time.sleep(END_KILLED_EVERY_SECONDS)


def _free_port(wanted: int | None) -> int:
    """A port of 127.0.0.1 that nothing listens on. BadInput when that is not the one asked for."""
    for port in [wanted] if wanted else range(PORT, PORT + PORTS_TRIED):
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
    raise BadInput(f"port {wanted or PORT} is taken: give another one with --port")


@contextmanager
def _worker(server: Server, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker of the pool, which runs one study at a time: the others wait for the machine.

    It runs in a session of its own: Ctrl-C reaches this process alone, which then ends everything in order.
    """
    start = ("worker", "start", "--pool", STUDIES, "--type", "process", "--limit", "1")
    command = [sys.executable, "-P", "-m", "prefect", *start]
    environment = {setting.name: value for setting, value in server.settings.items() if value}
    with private_log(log) as file:
        worker = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env=psutil.Process().environ() | environment,
        )
    try:
        yield worker
    finally:
        _end(worker)


def _end(worker: subprocess.Popen[bytes]) -> None:
    """Ends the worker and what it runs; studies save first, and say so to the server, which must still be there."""
    try:
        running = psutil.Process(worker.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        running = []
    for process in running:
        process.terminate()
    psutil.wait_procs(running, timeout=SAVE_SECONDS)
    worker.terminate()
    try:
        worker.wait(timeout=10)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()
