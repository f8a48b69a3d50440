"""A study's flow run goes on when its worker is killed, and then sees to its own cancel.

A worker of type process reads what its flow runs print, and ends them when a person cancels. Without it the next line
printed would end the run (Crashed, by a broken pipe), and nobody would tell it of a cancel: after five minutes Prefect
calls the run Cancelled, and its work goes on.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.runtime import deployment, flow_run

LOG = logging.getLogger("ratchet.study")
LOOK_SECONDS, ASK_SECONDS = 1.0, 5.0
OUTPUT = (1, 2)


def outlive_worker(cancelled: Callable[[], None]) -> None:
    """From now on the present flow run goes on without the worker that started it.

    Then `cancelled` is called, in a thread, when a person cancels the run; again when it fails with the server. Nothing
    happens to a run that no worker started.
    """
    if deployment.id:
        given = (os.getppid(), _readers(), UUID(str(flow_run.id)), cancelled)
        threading.Thread(target=_watch, args=given, name="worker-watch", daemon=True).start()


def _readers() -> dict[int, int]:
    """By number of each output that is a pipe, a reader of our own: no line that is printed breaks it then."""
    found = {}
    for number in OUTPUT:
        if stat.S_ISFIFO(os.fstat(number).st_mode):
            with suppress(OSError):  # a system without /proc
                found[number] = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_NONBLOCK)
    return found


def _watch(worker: int, readers: dict[int, int], run: UUID, cancelled: Callable[[], None]) -> None:
    while os.getppid() == worker:
        time.sleep(LOOK_SECONDS)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number, reader in readers.items():
        os.dup2(nowhere, number)
        with suppress(BlockingIOError):  # empty by now: who waited for room to print goes on
            while os.read(reader, 1 << 16):
                pass
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
