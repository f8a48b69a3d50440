"""Walks of studies, each in a process of its own: what the end of a stage makes ready is started within seconds."""

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from deployments.waits import end
from tasks.stage.outcome import AWAITING_RETRY

LOG = logging.getLogger("ratchet.slurm")
AGAIN_SECONDS = 30.0
"""After a walk that a busy server or a disk broke off; it goes on where it was."""
WALK_SECONDS = 900.0
"""No walk takes longer but one that hangs."""


class Walks:
    """The studies of one pool that are to be walked, and the one that is: so what the end of a stage makes ready is
    started within seconds.

    A page is somebody's code, which changes while the worker runs for weeks, and may do anything: the worker imports
    none. One process at a time; what ends while a study is walked has it walked once more.
    """

    def __init__(
        self,
        start: Callable[[Path, str], subprocess.Popen[bytes]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`start` walks the study of this name below a root, without a name all that are there."""
        self._start, self._clock = start or _process, clock
        self._due: dict[tuple[Path, str], float] = {}
        """Time from which each study is to be walked."""
        self._walked: tuple[Path, str] = Path(), ""
        self._process: subprocess.Popen[bytes] | None = None
        self._began = 0.0

    def ask(self, root: Path, study: str = "", after_seconds: float = 0.0) -> None:
        """Has the study walked: one of its stages has ended."""
        due = self._clock() + after_seconds
        self._due[root, study] = min(due, self._due.get((root, study), due))

    def look(self) -> bool:
        """Sees to the walk under way and begins the next one; True where one has ended, after which there may be
        stages to submit."""
        ended = self._process is not None and self._has_ended(self._process)
        if ended:
            self._process = None
        now = self._clock()
        due = [study for study, when in self._due.items() if when <= now]
        if self._process is None and due:
            del self._due[due[0]]
            self._walked, self._began = due[0], now
            self._process = self._start(*due[0])
        return ended

    def stop(self) -> None:
        """Ends the walk under way: whoever serves the pool next walks all studies first."""
        if self._process is not None:
            self._process.terminate()
            end(self._process)

    def _has_ended(self, process: subprocess.Popen[bytes]) -> bool:
        if process.poll() is None and self._clock() - self._began > WALK_SECONDS:
            LOG.warning("a walk of the studies below %s hangs, and is ended", Path(*self._walked))
            process.kill()
            end(process)
        if process.returncode is None:
            return False
        if process.returncode not in (0, AWAITING_RETRY.exit_code):
            LOG.warning("a walk of the studies below %s failed; `advance` starts what is ready", Path(*self._walked))
        elif process.returncode:
            self.ask(*self._walked, AGAIN_SECONDS)
        return True


def _process(root: Path, study: str) -> subprocess.Popen[bytes]:
    # -P: the folder where the worker was started may hold anything
    command = [sys.executable, "-P", "-m", "flows.advance", f"--root={root}", f"--study={study}"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL)
