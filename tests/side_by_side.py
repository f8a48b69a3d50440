"""How tests run side by side (`-n 2`): which stay together, what the workers counted, and that nothing is left running.

A pytest plugin, named by tests/conftest.py: with `-n`, the process that a person started collects no test and reads
no conftest.py below this folder.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests import leftovers, once

COUNTED: Counter[str] = Counter()
"""What the tests of this run counted, by name; at the end that of all workers is added up."""
ONE_BY_ONE = ("tests/slurm/",)
"""Tests that share nothing within their file: each goes to the next free worker."""
FIRST = (*ONE_BY_ONE, "tests/kill/", "tests/test_going_on", "tests/test_own_study")
"""What waits longest, so that no worker is left with it at the end."""
STUDY = re.compile(r"tests/tasks/(robustness|icecube|inversion|summarisation|poison|calorimeter)/")


class ByFile(LoadScopeScheduling):
    """The tests of a file stay together, since they share what is made once a file, and those of a study's room, which
    would wait for each other to finish it; files start in collected order."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False  # the slowest file may hold one test

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(ONE_BY_ONE):
            return nodeid
        return room[0] if (room := STUDY.match(nodeid)) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByFile(config, log)


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is one of several that a test run started."""
    return hasattr(config, "workerinput")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not item.nodeid.startswith(FIRST))


class Guard:
    """Ends with this test run, or with Ctrl-C, whatever that left running; see leftovers.py."""

    def __init__(self) -> None:
        os.environ[leftovers.MARK] = str(uuid4())
        self._process = subprocess.Popen(
            [sys.executable, leftovers.__file__], stdin=subprocess.PIPE, start_new_session=True
        )

    def end(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


class AtOnce:
    """Ends the workers on Ctrl-C: they would finish what they have begun first."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    def pytest_keyboard_interrupt(self) -> None:
        self._guard.end()


def pytest_configure(config: pytest.Config) -> None:
    if is_worker(config):
        return
    once.place()  # which the workers inherit
    guard = Guard()
    config.add_cleanup(guard.end)
    if config.getoption("numprocesses"):
        config.pluginmanager.register(AtOnce(guard))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if is_worker(session.config):
        session.config.workeroutput["counted"] = dict(COUNTED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    COUNTED.update(getattr(node, "workeroutput", {}).get("counted", {}))
