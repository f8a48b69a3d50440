"""Which flow runs of studies are alive: each holds a lock below its root while its process is there.

Prefect learns of no process that is killed (SIGKILL, no memory left, a power cut): its flow run would be Running for
ever. Whoever looks later, the study's next start or `ratchet ui`, ends it, as far as the lock says that it is dead.
"""

from __future__ import annotations

import atexit
import contextvars
import logging
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import PrefectException
from prefect.runtime import flow_run
from prefect.states import StateType

from deployments.prefect.artifacts import best_effort
from deployments.prefect.states import prefect_state
from storage import locks
from tasks.stage.outcome import CRASHED

LOG = logging.getLogger("ratchet.study")
FOLDER = ".flow-runs"
"""In a root: a lock folder for each flow run that works there, named by the run and how often it was started."""
LABEL = "ratchet.lock"
"""Of a flow run: where its lock is."""
AT_ONCE = 200
RUNNING = [StateType.RUNNING]


def hold(root: Path) -> None:
    """From now until this process ends others see that the present flow run is alive."""
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
    tags = FlowRunFilterTags(all_=[tag] if tag else None)
    state = FlowRunFilterState(type=FlowRunFilterStateType(any_=RUNNING))
    with get_client(sync_client=True) as client:
        for run in client.read_flow_runs(flow_run_filter=FlowRunFilter(tags=tags, state=state), limit=AT_ONCE):
            folder = Path(str(run.labels.get(LABEL, "")))
            if folder.name != f"{run.id}-{run.run_count}" or not folder.is_dir():
                continue  # not ours, just started again, ended this moment, or on a disk that is not here
            if locks.holder(folder, dead_after_seconds) is None and _same_state(client, run):
                _end(client, run, folder)


def beside(work: Callable[[], None]) -> Thread:
    """Does `work` in a thread, with the present server: nothing waits for it, or fails with it."""
    thread = Thread(target=contextvars.copy_context().run, args=(best_effort, work), daemon=True)
    thread.start()
    return thread


def _same_state(client: SyncPrefectClient, run: FlowRun) -> bool:
    """Whether nobody ended the run, or started it again, while its lock was watched."""
    return client.read_flow_run(run.id).state_id == run.state_id


def _end(client: SyncPrefectClient, run: FlowRun, folder: Path) -> None:
    seen = max((file.stat().st_mtime for file in folder.glob("*.alive")), default=0.0)
    state = prefect_state(
        CRASHED,
        "its process was killed (SIGKILL, no memory left, or a power cut), last seen at "
        f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seen))}. What it saved is kept: the same study, started "
        "again, goes on from there",
    )
    of_run = FlowRunFilter(id=FlowRunFilterId(any_=[run.id]))
    working = TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=RUNNING)))
    for task_run in client.read_task_runs(flow_run_filter=of_run, task_run_filter=working):
        client.set_task_run_state(task_run.id, state, force=True)
    client.set_flow_run_state(run.id, state, force=True)
    shutil.rmtree(folder, ignore_errors=True)
