"""Ends what a test run left running, however that ended: Ctrl-C, SIGKILL, or a test that forgot a process.

A process of its own. Its input closes when the test run is over; every process which that started, at whatever
depth and in whatever session, has MARK in its environment, or descends from one that has.
"""

import os
import shutil
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

MARK = "RATCHET_TEST_RUN"
CLUSTER = "CLUSTER_ROOT"
CLUSTERS = "ratchet-slurm-"
"""How the folders of the clusters begin that the tests make."""
PROC = Path("/proc")
PASS_SECONDS = 0.05
PASSES = 100
"""How often a process in state D, which ends only when its disk answers, is found again before it is left behind."""


class Process(NamedTuple):
    """A process as `/proc/<pid>/stat` has it."""

    pid: int
    started: int
    """With the id it names one process only: ids are given again."""
    parent: int
    state: str


def environment(pid: int) -> dict[str, str]:
    """With which a process was started; empty where it cannot be read or the process is over."""
    with suppress(OSError):
        entries = (PROC / str(pid) / "environ").read_bytes().decode(errors="replace").split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return {}


def process(pid: int) -> Process | None:
    """None when it is over, a zombie too, or cannot be read."""
    with suppress(OSError, IndexError, ValueError):
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()  # a name may hold any byte
        if fields[0] not in (b"Z", b"X"):
            return Process(pid, int(fields[19]), int(fields[1]), fields[0].decode())
    return None


def left(mark: str) -> dict[Process, dict[str, str]]:
    """The processes of a test run but this one, each with its environment."""
    everyone = [one for folder in PROC.glob("[0-9]*") if (one := process(int(folder.name)))]
    found = {one: given for one in everyone if (given := environment(one.pid)).get(MARK) == mark}
    grown = True
    while grown:
        ids = {one.pid for one in found}
        below = {one: environment(one.pid) for one in everyone if one.parent in ids and one not in found}
        found |= below
        grown = bool(below)
    return {one: given for one, given in found.items() if one.pid != os.getpid()}


def kill(one: Process) -> bool:
    """Ends this process, and none that has its id since; False when that is not allowed."""
    with suppress(ProcessLookupError):
        number = os.pidfd_open(one.pid)
        try:
            now = process(one.pid)
            if now and now.started == one.started:
                signal.pidfd_send_signal(number, signal.SIGKILL)
        except PermissionError:
            return False
        finally:
            os.close(number)
    return True


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    passes, behind, clusters = Counter[tuple[int, int]](), set[tuple[int, int]](), set[str]()
    while found := {one: given for one, given in left(os.environ[MARK]).items() if one[:2] not in behind}:
        for one, given in found.items():
            clusters.add(given.get(CLUSTER, ""))
            passes[one[:2]] += 1
            if not kill(one) or (one.state == "D" and passes[one[:2]] > PASSES):
                behind.add(one[:2])
        time.sleep(PASS_SECONDS)
    if killed := passes.keys() - behind:
        sys.stderr.write(f"{len(killed)} processes that the tests left running were killed\n")
    if behind:
        ids = ", ".join(str(pid) for pid, _ in sorted(behind))
        sys.stderr.write(f"processes that the tests left running and that do not end: {ids}\n")
    for folder in clusters:
        if Path(folder).name.startswith(CLUSTERS):  # and not a cluster of the person's own
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
