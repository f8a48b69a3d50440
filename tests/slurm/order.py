"""The order of the tests on real clusters, by chance, and how many jobs they submitted: a pytest plugin."""

import os
import random
from pathlib import Path

import pytest

from tests import share
from tests.side_by_side import COUNTED, is_worker

FLOOR, SEED = "RATCHET_SLURM_FLOOR", "RATCHET_SLURM_SEED"
"""The fewest jobs a test run must submit (where time was out, two thirds). The seed of the order, to repeat one."""
SUBMITTED = "real SLURM jobs submitted"
HERE = Path(__file__).parent


def pytest_configure() -> None:
    """Workers inherit the seed: they must agree on the order."""
    os.environ.setdefault(SEED, str(random.SystemRandom().randrange(10**6)))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """These tests share a cluster, so an order that always holds could hide what one leaves to the next."""
    places = [number for number, item in enumerate(items) if HERE in item.path.parents]
    mine = [items[place] for place in places]
    random.Random(os.environ[SEED]).shuffle(mine)
    for place, item in zip(places, mine, strict=True):
        items[place] = item


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.line(f"{SUBMITTED}: {COUNTED[SUBMITTED]} ({SEED}={os.environ[SEED]})")


def pytest_sessionfinish(session: pytest.Session) -> None:
    floor = int(os.environ.get(FLOOR) or 0)
    if share.is_late():
        floor = floor * 2 // 3
    if not is_worker(session.config) and COUNTED[SUBMITTED] < floor:
        session.config.pluginmanager.get_plugin("terminalreporter").write_line(
            f"{COUNTED[SUBMITTED]} real SLURM jobs were submitted, and {FLOOR} is {floor}", red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
