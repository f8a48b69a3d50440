"""What a test run makes once, in whichever of its processes wants it first: finished studies, most of all."""

import atexit
import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

PLACE = "RATCHET_TESTS_MADE"
"""The folder of all this. `.ci/run` names one for the test runs of all its parts; else it ends with the test run."""


def place() -> Path:
    """Of this process and of those that it starts from now on."""
    if PLACE not in os.environ:
        os.environ[PLACE] = tempfile.mkdtemp(prefix="ratchet-made-")
        atexit.register(shutil.rmtree, os.environ[PLACE], ignore_errors=True)
    return Path(os.environ[PLACE])


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """The folder of this name, filled by `make`. Read only."""
    folder = place() / name
    made = folder.with_name(f"{name}.made")
    with folder.with_name(f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of one that failed
            folder.mkdir()
            make(folder)
            made.touch()
    return folder
