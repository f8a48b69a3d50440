"""Prefect with its UI on this machine, for as long as a command runs: a server, the pool and a worker.

The server has the database of the commands that bring a server of their own, so that their runs are seen here too;
while this one answers, they use it (`deployments.prefect.embedded`).
"""

import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from deployments.deploy import deploy, make_pool
from deployments.prefect.embedded import server_here, started_server
from deployments.prefect.flow_run import beside, best_effort, end_killed
from deployments.prefect.generate import STUDIES, Profile, study_deployment
from deployments.prefect.recorded import record
from deployments.prefect.worker import WorkerEnded, worker
from storage import locks
from storage.errors import BadInput, Held

FOLDER = "ratchet-ui"
"""In PREFECT_HOME: who keeps the UI open."""
PORT = 4200
PORTS_TRIED = 50
ONE_AT_A_TIME = ("--type", "process", "--limit", "1")
"""The other studies wait for the machine."""
LOOK_EVERY_SECONDS, END_KILLED_EVERY_SECONDS = 1.0, 10.0


def keep_ui(profiles: Sequence[Profile], root: Path, port: int | None, ready: Callable[[str], None]) -> None:
    """Serves the UI at `port` (None: 4200, or the next one that is free) until interrupted; `ready` gets its address.

    What ran below the root while no server stood is shown too. At the end what runs is asked to save, and waited for.
    Raises BadInput where a server is configured or kept here already, or the port is taken; WorkerEnded when the worker
    ends by itself.
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
                with worker(server, STUDIES, home / "ui-worker.log", *ONE_AT_A_TIME) as process:
                    ready(server.page)
                    beside(lambda: _record(profiles, root))
                    beside(_end_killed)
                    while process.poll() is None:
                        time.sleep(LOOK_EVERY_SECONDS)
            raise WorkerEnded(
                f"the worker ended by itself (exit code {process.returncode}), and nothing runs without it. "
                f"{home / 'ui-worker.log'} says why. Start this again, and retry the study that ran: it goes on"
            )
    finally:
        lock.release()


def _record(profiles: Sequence[Profile], root: Path) -> None:
    with get_client(sync_client=True) as client:
        record(client, profiles, root)


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
