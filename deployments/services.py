"""Prefect's server, the pool of SLURM jobs and its worker for the length of one command, where none stand.

All of them end with the command, whatever ends it. The jobs go on: they never talk to Prefect, and the next command
finds them by what lies in the run directories.
"""

import os
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, PREFECT_HOME, temporary_settings
from prefect.states import Cancelled, StateType

from deployments.deploy import JOBS, deploy, make_pool
from deployments.prefect.embedded import Server, configured, prefect_server
from deployments.prefect.flow_run import flow_runs, of_type
from deployments.prefect.generate import shared_deployments
from deployments.prefect.worker import WorkerEnded, worker
from deployments.slurm.cluster.site import Site, folder_of_pool, server_of_worker
from deployments.slurm.job.preflight import is_of_this_machine
from deployments.slurm.study import study as study_file
from deployments.waits import wait_for
from storage import locks
from storage.errors import BadInput

SERVED_SECONDS = 120.0
"""A worker starts in some ten seconds; one that was killed on another host is seen to be dead after a minute."""


@contextmanager
def own_server(home: Path | None = None) -> Iterator[Server]:
    """A server that knows the pool of jobs and the deployments of stages; `home` has its database, by default
    PREFECT_HOME where that is on a disk of this host's own."""
    with ExitStack() as held:
        held.enter_context(_prefect_home(home or _on_own_disk()))
        held.enter_context(prefect_server())
        server = configured()
        assert server
        with get_client(sync_client=True) as client:
            make_pool(client, JOBS)
            for _ in deploy(
                client, (deployment for deployment in shared_deployments() if deployment["work_pool"]["name"] == JOBS)
            ):
                pass
        yield server


@contextmanager
def own_services(site: Site, home: Path | None = None) -> Iterator[Callable[[], None]]:
    """`own_server`, and a worker of the pool; gives what raises WorkerEnded when the worker has ended by itself.

    Commands on one host share a server, and the first worker serves all. BadInput where the worker of another server
    serves the jobs of this root: two would submit each job.
    """
    with own_server(home) as server:
        with get_client(sync_client=True) as client:
            _forget_cancelled(client)
        log = PREFECT_HOME.value() / "jobs-worker.log"
        with worker(server, JOBS, log) as process:

            def check() -> None:
                if process.poll() is not None:
                    last_line = log.read_text(errors="replace").strip().rpartition("\n")[2]
                    raise WorkerEnded(f"the worker of the jobs ended by itself ({last_line}); {log} says why")

            _wait_until_served(process, folder_of_pool(site, JOBS), server, check)
            yield check


def _wait_until_served(
    process: subprocess.Popen[bytes], folder: Path, server: Server, check: Callable[[], None]
) -> None:
    """Returns when this worker serves the pool, or another command's of the same server."""
    here = locks.process_identity()

    def served() -> bool:
        check()
        holder = locks.holder(folder / "locks") or {}
        ours = holder.get("pid") == process.pid or server_of_worker(folder) == server.address
        return ours and all(holder.get(key) == here.get(key) for key in ("boot_id", "pid_namespace"))

    def otherwise() -> str:
        holder = locks.holder(folder / "locks")
        who = f"pid {holder.get('pid')} on {holder.get('host')}" if holder else "nobody yet"
        job = f", job {holder['slurm_job_id']}" if holder and holder.get("slurm_job_id") else ""
        return (
            f"the jobs below {folder.parents[1]} are served by another Prefect server's worker ({who}{job}): "
            "wait for that command or end it, start this one on that host, or give it with --detach, which the "
            "follower of that root takes on"
        )

    wait_for(served, SERVED_SECONDS, otherwise)


def _forget_cancelled(client: SyncPrefectClient) -> None:
    """Cancels what waits for a job of a study that was cancelled while no server was there to be told."""
    for run in flow_runs(client, JOBS, state=of_type(StateType.SCHEDULED)):
        if study_file.stopped(Path(run.parameters.get("study_file", ""))).exists():
            client.set_flow_run_state(run.id, Cancelled(message="its study was cancelled"), force=True)


def _on_own_disk() -> Path:
    """PREFECT_HOME; where hosts share its disk, as they do home folders, a folder of this host's temporary one: SQLite
    locks up there, or its file is damaged. BadInput where another person has that."""
    home = PREFECT_HOME.value()
    if is_of_this_machine(home) or f"{home}/" not in str(PREFECT_API_DATABASE_CONNECTION_URL.value()):
        return home
    mine = Path(tempfile.gettempdir(), f"ratchet-prefect-{os.getuid()}")
    mine.mkdir(mode=0o700, exist_ok=True)
    status = mine.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise BadInput(f"{mine} is not yours alone: set PREFECT_HOME to a folder on a disk of this host's own")
    return mine


@contextmanager
def _prefect_home(home: Path) -> Iterator[None]:
    """PREFECT_HOME of this process, and of those that it starts, is `home` meanwhile."""
    before = os.environ.get("PREFECT_HOME")
    os.environ["PREFECT_HOME"] = str(home)
    try:
        with temporary_settings({PREFECT_HOME: home}):
            yield
    finally:
        del os.environ["PREFECT_HOME"]
        os.environ |= {} if before is None else {"PREFECT_HOME": before}
