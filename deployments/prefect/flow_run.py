"""Flow runs of studies: their states and tags, which of them are alive, and how one outlives its worker.

Prefect learns of no process that is killed (SIGKILL, no memory left, a power cut): its flow run would be Running for
ever. So each holds a lock below its root while its process is there. Whoever looks later, the study's next start or
`ratchet ui`, ends it, as far as the lock says that it is dead.
"""

import atexit
import contextvars
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, TaskRunFilter, WorkPoolFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException
from prefect.runtime import deployment, flow_run
from prefect.states import State, StateType

from storage import locks
from tasks.stage.outcome import CRASHED, PrefectState

LOG = logging.getLogger("ratchet.study")
FOLDER = ".flow-runs"
"""In a root: a lock folder for each flow run that works there, named by the run and how often it was started."""
LABEL = "ratchet.lock"
"""Label of a flow run: where its lock is."""
AT_ONCE = 200
LOOK_SECONDS, ASK_SECONDS = 1.0, 5.0
OUTPUT = (1, 2)


def prefect_state(state: PrefectState, message: str) -> State[Any]:
    """A state of the table of end states."""
    return State(type=StateType(state.type), name=state.name, message=message)


def add_tags(tags: Sequence[str]) -> None:
    """Adds tags to the present flow run: those of its deployment, or a person's, stay."""
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, tags=list(dict.fromkeys([*flow_run.tags, *tags])))


def flow_runs(
    client: SyncPrefectClient, pool: str = "", sort: FlowRunSort | None = None, newest_only: bool = False, **where: Any
) -> list[FlowRun]:
    """All flow runs, of a work pool if one is named, for which `where` holds as Prefect's API has it, such as
    `tags={"all_": ["ratchet"]}`; `newest_only`: the first AT_ONCE of them."""
    asked: dict[str, Any] = {"flow_run_filter": FlowRunFilter.model_validate(where), "sort": sort, "limit": AT_ONCE}
    if pool:
        asked["work_pool_filter"] = WorkPoolFilter.model_validate({"name": {"any_": [pool]}})
    runs: list[FlowRun] = []
    while True:
        page = client.read_flow_runs(**asked, offset=len(runs))
        runs += page
        if newest_only or len(page) < AT_ONCE:
            return runs


def of_type(*types: StateType) -> dict[str, Any]:
    """For `flow_runs`: those whose state is of one of these types."""
    return {"type": {"any_": types}}


def best_effort(show: Callable[[], None]) -> None:
    """Shows something, or only logs that it cannot: the work must not care."""
    try:
        show()
    except Exception as error:
        LOG.debug("not shown in Prefect: %s", error)


def beside(work: Callable[[], None]) -> threading.Thread:
    """Does `work` in a thread, with the present server: nothing waits for it, or fails with it."""
    thread = threading.Thread(target=contextvars.copy_context().run, args=(best_effort, work), daemon=True)
    thread.start()
    return thread


def hold(root: Path) -> None:
    """Lets others see that the present flow run is alive, from now until this process ends."""
    try:
        with get_client(sync_client=True) as client:
            started = client.read_flow_run(flow_run.id).run_count
            lock = locks.acquire(root.expanduser().absolute() / FOLDER / f"{flow_run.id}-{started}")
            atexit.register(_let_go, lock)  # by then its last state is set
            client.update_flow_run_labels(flow_run.id, {LABEL: str(lock.directory)})
    except (OSError, httpx.HTTPError, PrefectException) as error:
        LOG.debug("nobody will see whether this run is alive: %s", error)


def _let_go(lock: locks.Lock) -> None:
    lock.release()
    shutil.rmtree(lock.directory, ignore_errors=True)


def end_killed(tag: str = "", dead_after_seconds: float = locks.DEAD_AFTER_SECONDS) -> None:
    """Ends as Crashed the flow runs that are Running and whose process is dead, and their tasks: those with `tag`.

    A lock that was taken on another host, or before this one was started again, is watched for `dead_after_seconds`.
    """
    tags: dict[str, Any] = {"tags": {"all_": [tag]}} if tag else {}
    with get_client(sync_client=True) as client:
        for run in flow_runs(client, newest_only=True, state=of_type(StateType.RUNNING), **tags):
            folder = Path(str(run.labels.get(LABEL, "")))
            if folder.name != f"{run.id}-{run.run_count}" or not folder.is_dir():
                continue  # not ours, just started again, ended this moment, or on a disk that is not here
            dead = locks.holder(folder, dead_after_seconds) is None
            if dead and client.read_flow_run(run.id).state_id == run.state_id:  # nobody ended it, or started it again
                _end(client, run, folder)


def _end(client: SyncPrefectClient, run: FlowRun, folder: Path) -> None:
    seen = max((file.stat().st_mtime for file in folder.glob("*.alive")), default=0.0)
    state = prefect_state(
        CRASHED,
        "its process was killed (SIGKILL, no memory left, or a power cut), last seen at "
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seen))}. What it saved is kept: the same study, started "
        "again, goes on from there",
    )
    of_run = FlowRunFilter.model_validate({"id": {"any_": [run.id]}})
    working = TaskRunFilter.model_validate({"state": of_type(StateType.RUNNING)})
    for task_run in client.read_task_runs(flow_run_filter=of_run, task_run_filter=working):
        client.set_task_run_state(task_run.id, state, force=True)
    client.set_flow_run_state(run.id, state, force=True)
    shutil.rmtree(folder, ignore_errors=True)


def outlive_worker(cancelled: Callable[[], None]) -> None:
    """Lets the present flow run go on from now on without the worker that started it.

    A worker of type process reads what its flow runs print, and ends them when a person cancels. Without it the next
    line printed would end the run (Crashed, by a broken pipe), and nobody would tell it of a cancel: after five minutes
    Prefect calls the run Cancelled, and its work goes on. So `cancelled` is called then, in a thread, when a person
    cancels the run; again when it fails with the server. Nothing happens to a run that no worker started.
    """
    if deployment.id:
        arguments = (os.getppid(), _readers(), UUID(str(flow_run.id)), cancelled)
        threading.Thread(target=_watch, args=arguments, name="worker-watch", daemon=True).start()


def _readers() -> dict[int, int]:
    """A reader of our own by number of each output that is a pipe: no line that is printed breaks it then."""
    readers = {}
    for number in OUTPUT:
        if stat.S_ISFIFO(os.fstat(number).st_mode):
            with suppress(OSError):  # a system without /proc
                readers[number] = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    return readers


def _read_to_the_end(pipe: int) -> None:
    while os.read(pipe, 1 << 16):
        pass


def _watch(worker: int, readers: dict[int, int], run: UUID, cancelled: Callable[[], None]) -> None:
    while os.getppid() == worker:
        time.sleep(LOOK_SECONDS)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, reader in readers.items():
        os.dup2(nowhere, number)
        os.set_blocking(reader, True)  # who waited for room to print goes on, here and in the process of the work
        threading.Thread(target=_read_to_the_end, args=(reader,), daemon=True).start()
    LOG.info("the worker that started this run is gone; the run goes on")
    while True:
        time.sleep(ASK_SECONDS)
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(run).state
            if state is not None and (state.is_cancelling() or state.is_cancelled()):
                return cancelled()
        except (httpx.HTTPError, PrefectException) as error:
            LOG.debug("not asked whether the run was cancelled: %s", error)
