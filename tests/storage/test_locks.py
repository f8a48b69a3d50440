"""One holder, found out without flock: real processes that live, die, freeze and come back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from storage import durable, locks, markers
from storage.errors import Held
from storage.locks import LockLost
from tests.storage import runs

HOLDS = """
import sys
from pathlib import Path
from storage import locks
lock = locks.acquire(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.readline()
"""


class Process:
    """A real process that holds a lock until it is asked to release it."""

    def __init__(self, script: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", script, *map(str, arguments)],
            cwd=runs.REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def says(self) -> str:
        return self._process.stdout.readline().strip()

    def go_on(self) -> None:
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int:
        return self._process.wait(300)

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def write_lock(directory: Path, number: int = 1, **changes: object) -> dict:
    """A lock as this process would have made it, but for `changes`."""
    directory.mkdir(exist_ok=True)
    identity = locks.process_identity() | changes
    (directory / f"{number}.json").write_bytes(durable.canonical_json(identity))
    return identity


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "run" / "locks"


@pytest.fixture
def foreign(directory):
    """The lock of another machine: only its heartbeat can be seen."""
    directory.mkdir(parents=True)
    write_lock(directory, host="node17", boot_id="another boot", slurm_job_id="4711")
    durable.replace_quickly(directory / "1.alive", {"at": 0})
    return directory


# ------------------------------------------------------------------------------------------------ one holder


def test_the_first_holder_has_number_one_and_the_next_one_two(directory):
    for number in (1, 2, 3):
        lock = locks.acquire(directory)
        assert lock.number == number == locks.highest(directory)
        lock.release()
    names = {file.name for file in directory.iterdir()}
    assert names == {f"{n}.{what}" for n in (1, 2, 3) for what in ("json", "alive", "released")}


def test_a_lock_says_who_holds_it(directory, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    lock = locks.acquire(directory)
    identity = json.loads((directory / "1.json").read_bytes())
    lock.release()
    assert (
        identity["pid"] == os.getpid()
        and identity["host"] == os.uname().nodename
        and identity["slurm_job_id"] == "4711"
    )
    assert identity["boot_id"] and identity["pid_namespace"].startswith("pid:[") and int(identity["process_start"]) >= 0


def test_a_task_of_an_array_is_named_as_slurm_s_commands_take_it(monkeypatch):
    for name, value in {"JOB_ID": "9", "JOB_NAME": "trains", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    identity = locks.process_identity()
    assert (identity["slurm_job_id"], identity["slurm_job_name"]) == ("7_2", "trains[2]")


def test_a_live_holder_is_named_with_pid_host_and_job(directory):
    with Process(HOLDS, directory) as other:
        assert other.says() == "held"
        with pytest.raises(Held) as error:
            locks.acquire(directory)
        assert str(directory.parent) in str(error.value)
        assert f"pid {other.pid} on {os.uname().nodename}, job none" in str(error.value)
        assert locks.holder(directory)["pid"] == other.pid
    assert locks.highest(directory) == 1


def test_of_many_threads_at_once_exactly_one_wins(directory):
    for _ in range(10):
        start, won, held = threading.Barrier(8), [], []

        def try_it(start=start, won=won, held=held):
            start.wait()
            try:
                won.append(locks.acquire(directory))
            except Held:
                held.append(True)

        threads = [threading.Thread(target=try_it) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(held)) == (1, 7)
        won[0].release()


RACES = """
import sys
from pathlib import Path
from storage import locks
from storage.errors import Held
print("ready", flush=True)
sys.stdin.readline()
try:
    print("won", locks.acquire(Path(sys.argv[1])).number, flush=True)
except Held:
    print("held", flush=True)
sys.stdin.readline()
"""


def test_of_many_processes_that_find_a_dead_holder_exactly_one_takes_over(directory):
    directory.mkdir(parents=True)
    write_lock(directory, process_start="1")
    started = [Process(RACES, directory) for _ in range(5)]
    try:
        assert [process.says() for process in started] == ["ready"] * 5
        for process in started:
            process.go_on()
        assert sorted(process.says() for process in started) == ["held"] * 4 + ["won 2"]
    finally:
        for process in started:
            process.__exit__()
    assert locks.highest(directory) == 2
    assert not list(directory.glob(".tmp-*"))


# --------------------------------------------------------------------------------------------- dead or alive


def test_a_lock_that_a_server_made_without_saying_so_is_known_as_ones_own(directory, monkeypatch):
    """An NFS server restarts between making the link and its answer; asked again, it answers that the name is there."""
    link = os.link

    def unheard(*names):
        link(*names)
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", unheard)
    lock = locks.acquire(directory)
    lock.check()
    lock.release()
    assert lock.number == 1


def test_whoever_was_late_and_finds_its_temporary_name_swept_away_is_held_and_not_broken(directory, monkeypatch):
    holder = locks.acquire(directory)
    monkeypatch.setattr(locks, "highest", lambda folder: len(swept))
    swept = []

    def late(temporary, final):
        swept.append(Path(temporary).unlink())
        raise FileExistsError(17, "File exists")

    monkeypatch.setattr(os, "link", late)
    with pytest.raises(Held):
        locks.acquire(directory)
    holder.release()


def test_a_released_lock_is_free_though_its_process_lives(directory):
    with Process(HOLDS.replace('print("held"', 'lock.release(); print("held"'), directory) as other:
        assert other.says() == "held"
        assert locks.holder(directory) is None
        lock = locks.acquire(directory, dead_after_seconds=1000)
        assert lock.number == 2
        lock.release()


def test_the_lock_of_a_killed_process_is_taken_at_once(directory):
    with Process(HOLDS, directory) as other:
        assert other.says() == "held"
        other.kill()
        other.wait()
        assert locks.holder(directory) is None
        assert_taken_at_once(directory)


def test_the_lock_of_a_zombie_is_taken_at_once(directory):
    """A killed process that nobody has asked about yet still has its pid."""
    with Process(HOLDS, directory) as other:
        assert other.says() == "held"
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert Path(f"/proc/{other.pid}").exists()
        assert_taken_at_once(directory)


@pytest.mark.parametrize("start", ["1", None])
def test_a_lock_whose_pid_now_belongs_to_another_process_is_taken_at_once(directory, start):
    directory.mkdir(parents=True)
    write_lock(directory, pid=os.getppid(), process_start=start)
    assert_taken_at_once(directory)


def test_another_pid_namespace_of_this_machine_is_judged_by_the_heartbeat(directory):
    """The same pid and start in another container is another process, or none that we could see."""
    directory.mkdir(parents=True)
    write_lock(directory, pid_namespace="pid:[1]", pid=2**22 + 1)
    assert locks.holder(directory) is not None
    began = time.monotonic()
    lock = locks.acquire(directory, dead_after_seconds=0.4)
    assert time.monotonic() - began >= 0.4
    lock.release()


def test_the_lock_of_another_host_is_held_while_its_heartbeat_moves(foreign):
    ended = threading.Event()

    def beat():
        while not ended.wait(0.1):
            durable.replace_quickly(foreign / "1.alive", {"at": time.time()})

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(Held, match=r"pid \d+ on node17, job 4711"):
            locks.acquire(foreign, dead_after_seconds=60)
    finally:
        ended.set()
        thread.join()
    assert locks.highest(foreign) == 1


def test_the_lock_of_another_host_is_taken_only_after_its_heartbeat_stood_still(foreign):
    assert locks.holder(foreign)["host"] == "node17", "nobody can know at once"
    began = time.monotonic()
    lock = locks.acquire(foreign, dead_after_seconds=0.5)
    waited = time.monotonic() - began
    lock.release()
    assert lock.number == 2 and waited >= 0.5


def test_clocks_of_other_machines_do_not_matter(foreign):
    """A heartbeat that says it is from the future, and a file time from the future, still stand still."""
    durable.replace_quickly(foreign / "1.alive", {"at": time.time() + 1e6})
    os.utime(foreign / "1.alive", (time.time() + 1e6,) * 2)
    lock = locks.acquire(foreign, dead_after_seconds=0.3)
    assert lock.number == 2
    lock.release()


def test_a_lock_released_by_another_host_is_taken_at_once(foreign):
    (foreign / "1.released").touch()
    assert_taken_at_once(foreign)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe"])
def test_a_lock_file_that_cannot_be_read_is_judged_by_the_heartbeat(directory, content):
    directory.mkdir(parents=True)
    (directory / "1.json").write_bytes(content)
    assert "cannot be read" in locks.holder(directory)["host"]
    began = time.monotonic()
    lock = locks.acquire(directory, dead_after_seconds=0.3)
    assert time.monotonic() - began >= 0.3 and lock.number == 2
    lock.release()


def test_numbers_are_compared_as_numbers(directory):
    directory.mkdir(parents=True)
    for number in (2, 9, 10):
        write_lock(directory, number, process_start="1")
    (directory / "notes.json").write_text("{}")
    lock = locks.acquire(directory)
    assert lock.number == 11
    lock.release()


def assert_taken_at_once(directory):
    number = locks.highest(directory)
    began = time.monotonic()
    lock = locks.acquire(directory, dead_after_seconds=1000)
    assert time.monotonic() - began < 100
    assert lock.number == number + 1
    lock.release()


# ------------------------------------------------------------------------------------ heartbeats and release


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_holder_beats_until_it_releases(directory, monkeypatch):
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)
    beats = []
    lock = locks.acquire(directory)
    lock.beat = lambda: beats.append((directory / "1.alive").read_bytes())
    wait_for(lambda: len(beats) >= 3)
    lock.release()
    assert not lock._thread.is_alive()
    assert len(set(beats)) >= 3


def test_a_full_or_read_only_disk_stops_neither_the_heartbeat_nor_the_release(small_disk, monkeypatch):
    """The work goes on until it writes something that counts; letting go must not hide how it ended."""
    monkeypatch.setattr(locks, "HEARTBEAT_SECONDS", 0.05)
    lock, beats = locks.acquire(small_disk / "locks"), []
    lock.beat = lambda: beats.append(1)
    runs.remount(small_disk, "ro")
    before = len(beats)
    wait_for(lambda: len(beats) >= before + 2)
    assert lock._thread.is_alive()
    lock.release()
    assert not lock._thread.is_alive()


# ------------------------------------------------------------------------------------------------- taken over


def test_a_lock_that_was_taken_over_cannot_be_used(directory):
    lock = locks.acquire(directory)
    lock.check()
    write_lock(directory, 2)
    with pytest.raises(LockLost, match="lock 1 was taken over by lock 2"):
        lock.check()
    lock.release()


FROZEN = """
import sys
from pathlib import Path
import torch, safetensors.torch
from storage import locks, markers
from storage.checkpoints import Checkpoints
from storage.locks import LockLost
from storage.records import RecordParts
from tests.storage import runs
run = runs.run_of(Path(sys.argv[1]))
lock = locks.acquire(run.path / "locks")
print("held", flush=True)
sys.stdin.readline()
weights = {"model": {"weight": torch.full((3,), 666.0)}}
for commit in (
    lambda: markers.write(run, runs.OUTPUTS, runs.INPUTS, lock),
    lambda: Checkpoints(run.checkpoints, {}, lock).save(1, weights, {}),
    lambda: Checkpoints(run.checkpoints, {}, lock).save(9, weights, {}),
    lambda: RecordParts(run.path / "records", {}, lock).write("part", [{"a": 1}]),
):
    try:
        commit()
        print("committed", flush=True)
    except LockLost as error:
        print(error, flush=True)
lock.release()
print("released", flush=True)
"""


def test_a_holder_that_froze_was_taken_over_and_comes_back_cannot_commit_anything(tmp_path):
    import torch

    from storage.checkpoints import Checkpoints

    run = runs.run_of(tmp_path)
    runs.fill(run)
    directory = run.path / "locks"
    with Process(FROZEN, tmp_path) as frozen:
        assert frozen.says() == "held"
        os.kill(frozen.pid, signal.SIGSTOP)
        held = json.loads((directory / "1.json").read_bytes())
        assert locks.holder(directory)["pid"] == frozen.pid, "frozen is not dead"
        (directory / "1.json").write_bytes(durable.canonical_json(held | {"boot_id": "another boot"}))
        lock = locks.acquire(directory, dead_after_seconds=0.3)
        Checkpoints(run.checkpoints, {}, lock).save(1, {"model": {"weight": torch.ones(3)}}, {})
        markers.write(run, runs.OUTPUTS, runs.INPUTS, lock)
        before = {name: data for name, data in runs.tree(run.path).items() if not name.startswith("locks/")}

        os.kill(frozen.pid, signal.SIGCONT)
        frozen.go_on()
        lines = [frozen.says() for _ in range(5)]
        assert all(line.endswith("lock 1 was taken over by lock 2") for line in lines[:4])
        assert lines[4] == "released"

    after = {name: data for name, data in runs.tree(run.path).items() if not name.startswith("locks/")}
    assert after == before
    assert not runs.temporaries(run.path)
    lock.check()
    assert markers.check(run, runs.INPUTS, full=True).holds
    lock.release()
