"""Which variables the environment of a pool's worker has: who starts a study looks before anything is submitted."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

from storage import durable

FILE = "environment.json"


def tell(folder: Path) -> None:
    """Writes the names of this process's variables into the pool's folder; no value of any."""
    durable.write_json(folder / FILE, {"set": sorted(os.environ)})


def of_worker(folder: Path) -> Container[str]:
    """Names of the variables of the worker that served the pool last; this process's where there was none yet."""
    try:
        return frozenset(durable.read_json(folder / FILE)["set"])
    except (OSError, ValueError, KeyError):
        return os.environ
