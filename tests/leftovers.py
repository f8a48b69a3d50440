"""Ends what a test run left running, however that ended: Ctrl-C, SIGKILL, or a test that forgot a process.

A process of its own. Its input closes when the test run is over; every process which that started, at whatever
depth and in whatever session, has MARK in its environment, or descends from one that has.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path

MARK = "RATCHET_TEST_RUN"
CLUSTER = "CLUSTER_ROOT"
CLUSTERS = "ratchet-slurm-"
"""How the folders of the clusters begin that the tests make."""


def environment(pid: int) -> dict[str, str]:
    """With which a process was started; empty where it cannot be read or the process is over."""
    with suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)
    return {}


def parents() -> dict[int, int]:
    """The parent of every process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError, ValueError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(folder.name)] = int(parent)
    return found


def left(mark: str) -> dict[int, dict[str, str]]:
    """The processes of a test run but this one, each with its environment."""
    tree = parents()
    found = {pid: told for pid in tree if (told := environment(pid)).get(MARK) == mark}
    grown = True
    while grown:
        below = {pid: environment(pid) for pid, parent in tree.items() if parent in found and pid not in found}
        found |= below
        grown = bool(below)
    found.pop(os.getpid(), None)
    return found


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.read()
    killed, clusters = set[int](), set[str]()
    while found := left(os.environ[MARK]):
        for pid, told in found.items():
            clusters.add(told.get(CLUSTER, ""))
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed |= found.keys()
    if killed:
        sys.stderr.write(f"{len(killed)} processes that the tests left running were killed\n")
    for folder in clusters:
        if Path(folder).name.startswith(CLUSTERS):  # and not a cluster of the person's own
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
