"""Nothing that a test run started outlives it."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests import leftovers
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
def test_what_a_test_run_left_running_ends_with_it(how):
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


SOMEBODY_ELSE = 65534
END = "import os, sys; from tests import leftovers as l; l.PROC = l.Path(sys.argv[1]); {first}; l.main()"


def ended(mark: str, proc: Path = Path("/proc"), first: str = "0") -> subprocess.CompletedProcess[str]:
    """What `leftovers` did of a test run with this mark that is over; `first` runs in its process before."""
    command = [sys.executable, "-c", END.format(first=first), str(proc)]
    given = os.environ | {leftovers.MARK: mark}
    return subprocess.run(
        command, cwd=REPOSITORY, env=given, input="", capture_output=True, text=True, timeout=300, check=False
    )


@pytest.fixture
def sleep() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no test run."""
    process = subprocess.Popen(["sleep", "600"], env={})
    yield process
    process.kill()
    process.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes of two users")
def test_a_process_that_may_not_be_ended_keeps_no_other_and_is_named(tmp_path):
    """Its environment cannot be read either: it is found below the one that started it."""
    cluster = tmp_path / f"{leftovers.CLUSTERS}x"
    cluster.mkdir()
    os.chown(cluster, SOMEBODY_ELSE, -1)
    tmp_path.chmod(0o777)
    start = f"sleep 600 & echo $!; exec setpriv --reuid {SOMEBODY_ELSE} --clear-groups sleep 600"
    marked = {leftovers.MARK: "may not", leftovers.CLUSTER: str(cluster), "PATH": os.environ["PATH"]}
    parent = subprocess.Popen(["bash", "-c", start], env=marked, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    try:
        while Path(f"/proc/{parent.pid}/comm").read_text() != "sleep\n":
            assert parent.poll() is None
        done = ended("may not", first=f"os.setuid({SOMEBODY_ELSE})")
        assert done.returncode == 0 and parent.wait() == -signal.SIGKILL
        assert "1 processes" in done.stderr and done.stderr.endswith(f"do not end: {child}\n"), done.stderr
    finally:
        os.kill(child, signal.SIGKILL)
        parent.kill()
        parent.wait()


def listed(folder: Path, process: int, state: str) -> None:
    """Puts a process into a folder like /proc: of the test run `fake`, and in this state for ever."""
    stat = Path(f"/proc/{process}/stat").read_bytes()
    before, _, fields = stat.rpartition(b") ")
    (folder / str(process)).mkdir()
    (folder / str(process) / "stat").write_bytes(
        b"%b) %b%b" % (before.replace(b"sleep", b"\xff) ("), state.encode(), fields[1:])
    )
    (folder / str(process) / "environ").write_bytes(f"{leftovers.MARK}=fake\0".encode())


def test_a_process_that_waits_for_its_disk_is_killed_and_not_waited_for(tmp_path, sleep):
    listed(tmp_path, sleep.pid, "D")
    done = ended("fake", tmp_path)
    assert (done.returncode, done.stderr.split()[-1]) == (0, str(sleep.pid)), done.stderr
    assert sleep.wait() == -signal.SIGKILL


def test_a_zombie_is_over(tmp_path, sleep):
    listed(tmp_path, sleep.pid, "Z")
    assert ended("fake", tmp_path).stderr == ""


def test_a_process_that_vanished_or_whose_id_is_another_ones_by_now_is_let_be(sleep):
    gone = subprocess.Popen(["sleep", "600"])
    (over, alive) = (leftovers.process(one.pid) for one in (gone, sleep))
    assert over and alive
    gone.kill()
    gone.wait()
    assert leftovers.kill(over)
    assert leftovers.kill(alive._replace(started=alive.started - 1))
    sleep.terminate()
    assert sleep.wait() == -signal.SIGTERM
