"""A share of the long tests, for a run that has no time for all of them: a pytest plugin.

A seed draws which, and in which order of files; after so many seconds no other one begins.
"""

from __future__ import annotations

import os
import random
import time

import pytest

SEED, SECONDS = "RATCHET_LONG_SEED", "RATCHET_LONG_SECONDS"
"""Without them all run. `.ci/run` gives the commit, so that the share changes and can be drawn again, and a time that a
slow machine has too."""
ONE_OF = 3
BEGAN = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := os.environ.get(SEED):
        names = sorted(item.nodeid for item in items if item.get_closest_marker("long"))
        draw = random.Random(seed)
        taken = draw.sample(names, -(-len(names) // ONE_OF))
        left = set(names).difference(taken)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
        places = {item.path: draw.random() for item in sorted(items, key=lambda item: item.path)}
        items[:] = sorted(
            (item for item in items if item.nodeid not in left),
            key=lambda item: places[item.path] if item.get_closest_marker("long") else 0,
        )


def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = os.environ.get(SECONDS)
    if seconds and item.get_closest_marker("long") and time.monotonic() - BEGAN > float(seconds):
        pytest.skip(f"the {seconds} seconds of {SECONDS} are over")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if seed := os.environ.get(SEED):
        terminalreporter.line(f"one of {ONE_OF} long tests, drawn by {SEED}={seed}")
