"""Nothing that a test run started outlives it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.conftest import REPOSITORY

RUN = """
import os, subprocess, sys
from tests.side_by_side import Guard
guard = Guard()
orphan = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True)"
subprocess.run([sys.executable, "-c", orphan])
child = "import subprocess as s; sleep = s.Popen(['sleep', '600'], env={}); print(sleep.pid, flush=True); sleep.wait()"
subprocess.Popen([sys.executable, "-c", child], start_new_session=True)
sys.stdin.readline()
guard.end()
"""


@pytest.mark.parametrize("how", ["ends", "is killed"])
def test_what_a_test_run_left_running_ends_with_it(how: str) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", RUN], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert run.stdin and run.stdout
    orphan, child_without_environment = (os.pidfd_open(int(run.stdout.readline())) for _ in range(2))
    if how == "is killed":
        run.send_signal(signal.SIGKILL)
    with suppress(BrokenPipeError):
        run.communicate("\n")
    for process in (orphan, child_without_environment):
        assert select.select([process], [], [], 60)[0], "it outlived the test run"
        os.close(process)
