"""A test run looks at nothing of a person's: ./runs, .prefect, the home."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apart import sitecustomize
from tests.conftest import REPOSITORY

LOOK = """
import tests.apart, subprocess, sys
look = sys.argv[1]
try:
    exec(look)
except PermissionError as error:
    print("here:", error)
print("child:", subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stderr[-300:])
print("noted:", tests.apart.news())
"""


@pytest.mark.parametrize("place", ["runs", ".prefect/profiles.toml", "HOME/.cache/x"])
@pytest.mark.parametrize(
    "look",
    [
        "import os; os.scandir({!r})",
        "open({!r})",
        "import os; os.rename('/nonexistent', {!r})",
        "import pathlib; pathlib.Path({!r}).mkdir()",
        "import sqlite3; sqlite3.connect({!r})",
    ],
)
def test_a_test_run_and_what_it_starts_are_refused_what_a_person_uses(tmp_path, place, look):
    own = {name: value for name, value in os.environ.items() if not name.startswith("RATCHET_TESTS_")}
    given = own | {"HOME": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
    place = place.replace("HOME", str(tmp_path)) if "HOME" in place else str(REPOSITORY / place)
    kept = given | {"TMPDIR": str(tmp_path / "tmp")}
    (tmp_path / "tmp").mkdir()
    done = subprocess.run([sys.executable, "-c", LOOK, look.format(place)], env=kept, capture_output=True, text=True)
    assert done.stdout.count(f"a test looks at {place}, which is a person's") == 2, done.stdout + done.stderr
    assert done.stdout.partition("noted:")[2].count(place) == 2


def test_this_run_is_apart_itself():
    assert Path.home() != Path(os.environ[sitecustomize.PLACES].split(os.pathsep)[-1]), "its home is its own"
    child = "import sys; print('sitecustomize' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", child], capture_output=True, text=True).stdout == "True\n"
