"""Keeps a test run out of what a person uses: ./runs, .prefect and the home. Imported before anything else.

The run has a home of its own, and each Python process of it, by sitecustomize.py of this folder, refuses to open, list
or change what lies in these places; what was refused is noted, since it may be a program that goes on without.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.apart import sitecustomize

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]


def begin() -> None:
    """For this process and all that it starts. Workers of `-n` have it of the process that started them.

    A person may import tests outside of a test run, as `python -m tests.docs.quotes` does, which reads ./runs.
    """
    if sitecustomize.PLACES in os.environ or "PYTEST_VERSION" not in os.environ:
        return
    home, own = Path.home(), Path(tempfile.mkdtemp(prefix="ratchet-home-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    (own / ".gitconfig").write_text("[safe]\n\tdirectory = *\n[init]\n\tdefaultBranch = main\n")
    kept = [REPOSITORY, Path(sys.prefix), Path(sys.base_prefix), Path(tempfile.gettempdir()), *map(Path, sys.path)]
    refused = [REPOSITORY / "runs", REPOSITORY / ".prefect", *([home] if home != Path("/") else [])]
    os.environ |= {
        sitecustomize.PLACES: os.pathsep.join(map(str, refused)),
        sitecustomize.KEPT: os.pathsep.join(str(path) for path in kept if path.is_absolute()),
        sitecustomize.NOTED: str(own / "refused"),
        "HOME": str(own),
        "PREFECT_HOME": str(own / ".prefect"),
        "OMP_WAIT_POLICY": "passive",  # threads that wait for one another spin, on cores that other workers need
        "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        del os.environ[name]
    sitecustomize.refuse()


def news() -> str:
    """What was refused since this was last asked, a line each, with the test that was at work; empty if nothing."""
    file = Path(os.environ.get(sitecustomize.NOTED, os.devnull))
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    new = lines[len(_told) :]
    _told.extend(new)
    return "".join(new)


_told: list[str] = []

begin()
