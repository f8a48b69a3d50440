"""A share of the tests that are marked `long` or `drawn`, for a run that has no time for all of them: a pytest plugin.

A seed draws which of them, and the order of their files; after a moment no other one begins, on SLURM neither.
"""

import os
import random
import time

import pytest

SEED, UNTIL = "RATCHET_LONG_SEED", "RATCHET_LONG_UNTIL"
"""Without them all run. `.ci/run` gives the commit, so that the share changes and can be drawn again, and a moment
(seconds since 1970), so that a slow machine ends in time too."""
ONE_OF = 3


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if seed := os.environ.get(SEED):
        draw, left = random.Random(seed), set()
        for mark in ("long", "drawn"):
            names = sorted(item.nodeid for item in items if item.get_closest_marker(mark))
            left |= set(names).difference(draw.sample(names, -(-len(names) // ONE_OF)))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left])
        places = {item.path: draw.random() for item in sorted(items, key=lambda item: item.path)}
        items[:] = sorted(
            (item for item in items if item.nodeid not in left),
            key=lambda item: places[item.path] if item.get_closest_marker("long") else 0,
        )


def is_late() -> bool:
    return time.time() > float(os.environ.get(UNTIL) or "inf")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if is_late() and {"long", "slurm_long"} & {mark.name for mark in item.iter_markers()}:
        pytest.skip(f"it is later than {UNTIL}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if seed := os.environ.get(SEED):
        terminalreporter.line(f"one of {ONE_OF} long and drawn tests, by {SEED}={seed}")
