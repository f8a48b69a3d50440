"""Waits that end: for a server, a worker or another process to do what it must; or by a SIGTERM."""

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from storage.errors import BadInput

LOOK_SECONDS, END_SECONDS = 0.1, 10.0
Found = TypeVar("Found")


def wait_for(look: Callable[[], Found | None], seconds: float, otherwise: Callable[[], str]) -> Found:
    """What `look` finds, once it finds something; after so many seconds BadInput with the sentence `otherwise`."""
    end = time.monotonic() + seconds
    while not (answer := look()):
        if time.monotonic() > end:
            raise BadInput(otherwise())
        time.sleep(LOOK_SECONDS)
    return answer


def end(process: subprocess.Popen[bytes]) -> None:
    """Waits for the process, which was asked to end, and kills it when it takes longer."""
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Terminated(BaseException):
    """SIGTERM came: nothing between may take it for an error of its own."""


@contextmanager
def terminated_by_sigterm() -> Iterator[None]:
    """Raises Terminated in the block on a SIGTERM that no stage at work hears."""

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
