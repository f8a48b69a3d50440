"""The training command, made to die by SIGKILL at a chosen moment of a durable write.

`python -m tests.kill.victim RUN_DIRECTORY MOMENT PATTERN NTH` is `python -m tasks.training --run-dir RUN_DIRECTORY`
that dies when the NTH path matching PATTERN reaches MOMENT. The fault point exists here only: Ratchet has no switch.

`python -m tests.kill.victim` without arguments imports torch once and then forks one victim for each line of its
input (the same arguments as JSON, without a moment for one that is to be killed from outside), since a start of the
command takes three seconds and nearly all of them are imports. It answers with the pid, and, at the next line, with
the exit code: the pid is not used again before.
"""

from __future__ import annotations

import fnmatch
import importlib
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from storage import durable
from tasks.training.__main__ import main

IMPORTED_BY_WORK = (
    "tests.kill.toy",
    "tasks.monotonic.arms",
    "tasks.inversion.train",
    "tasks.icecube.train",
    "tasks.poison.fit",
    "tasks.calorimeter.fit",
)
SLOW_SECONDS = 0.005
"""How long each moment of a checkpoint's write is drawn out, so that training goes on while it is written."""


def die_at(run: Path, moment: str, pattern: str, nth: int) -> None:
    """Puts the end of this process in the place of the `nth` time that a matching path reaches `moment`."""
    left, lock = nth, threading.Lock()

    def reached(now: str, path: Path) -> None:
        nonlocal left
        name = os.path.relpath(path, run)
        if name.startswith("checkpoints/"):
            time.sleep(SLOW_SECONDS)
        with lock:
            left -= now == moment and fnmatch.fnmatch(name, pattern)
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    durable.reached = reached


def victim(run: str, moment: str = "", pattern: str = "", nth: int = 0) -> int:
    """The command itself; without a moment, untouched."""
    if moment:
        die_at(Path(run), moment, pattern, int(nth))
    return main(["--run-dir", run, "--own", str(Path(__file__).parents[2])])


def serve() -> None:
    """Forks victims until the input ends."""
    for name in IMPORTED_BY_WORK:
        importlib.import_module(name)
    for line in sys.stdin:
        if not (pid := os.fork()):
            os._exit(victim(*json.loads(line)))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()
    os._exit(0)  # what torch tears down takes two seconds


if __name__ == "__main__":
    sys.exit(victim(*sys.argv[1:]) if sys.argv[1:] else serve())
