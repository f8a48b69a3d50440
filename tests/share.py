"""A share of the long tests, drawn by a seed, for a run that has no time for all of them: a pytest plugin."""

from __future__ import annotations

import os
import random

import pytest

SEED = "RATCHET_LONG_SEED"
"""Without it all of them run. `.ci/run` gives the commit, so that the share changes and can be drawn again."""
ONE_OF = 3


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := os.environ.get(SEED):
        names = sorted(item.nodeid for item in items if item.get_closest_marker("long"))
        taken = random.Random(seed).sample(names, -(-len(names) // ONE_OF))
        left = set(names).difference(taken)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
        items[:] = [item for item in items if item.nodeid not in left]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if seed := os.environ.get(SEED):
        terminalreporter.line(f"one of {ONE_OF} long tests, drawn by {SEED}={seed}")
