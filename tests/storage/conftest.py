"""A lock, and a real small disk for the tests that fill it or find it read-only."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import locks
from tests.storage import runs


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with runs.small_disk(tmp_path / "disk") as folder:
        yield folder


@pytest.fixture
def lock(tmp_path: Path) -> Iterator[locks.Lock]:
    lock = locks.acquire(tmp_path / "locks")
    yield lock
    lock.release()
