"""Ends an attempt that hangs: a disk, a driver or a lock that never answers would else use up the whole time limit."""

from __future__ import annotations

import faulthandler
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

TICK_SECONDS = 5.0
LAST_WORDS_SECONDS = 30.0
EXIT_CODE = 1


@contextmanager
def ended_when_stalled(
    last_step_at: Callable[[], float | None], limit_seconds: float, say: Callable[[float], TextIO]
) -> Iterator[None]:
    """Ends this process when `last_step_at()` has not changed for `limit_seconds` while the block runs.

    `say(seconds)` records the end and returns the open log, to which the stacks of all threads are written: they show
    where it hangs. Nothing gentler would work: a thread that waits inside the kernel or a driver sees no exception. A
    process that was frozen itself (SIGSTOP, a laptop's lid) does not count as hung: only time in which this thread ran
    counts.
    """
    ended = threading.Event()
    tick = min(TICK_SECONDS, limit_seconds / 10)

    def watch() -> None:
        known_step, stalled, asked_at = last_step_at(), 0.0, time.monotonic()
        while not ended.wait(tick):
            now, latest = time.monotonic(), last_step_at()
            stalled = stalled + min(now - asked_at, 2 * tick) if latest == known_step else 0.0
            known_step, asked_at = latest, now
            if stalled >= limit_seconds and not ended.is_set():
                threading.Timer(LAST_WORDS_SECONDS, os._exit, (EXIT_CODE,)).start()  # saying it may hang too
                try:
                    faulthandler.dump_traceback(say(stalled), all_threads=True)
                finally:
                    os._exit(EXIT_CODE)

    thread = threading.Thread(target=watch, name="stall-watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
