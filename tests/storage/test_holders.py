"""Two processes at one run directory, with the real training command: one of them works, whatever happens to it.

What a lock file says of its holder is tested in test_locks.py; here whole trainings race, freeze, are taken over and
come back, and what counts is the bytes that are left.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch

from storage import durable, locks, markers
from storage.checkpoints import Checkpoints
from storage.run_directory import RunDirectory
from tasks.stage.execution import Execution
from tasks.stage.outcome import Outcome
from tests.storage import runs
from tests.tasks.tiny import HOOKS, Budget, ToyConfig, toy_attempt, toy_directory, what_must_be_equal

DEAD_AFTER = 0.3
PATIENCE = 60.0
SHORT = ToyConfig()
TOY = ToyConfig(
    examples=1600,
    budget=Budget(epochs=1.0, effective_batch_examples=8, learning_rate=0.05),
    execution=Execution(micro_batch_examples=4, cpu_threads=1),
)  # 200 steps of 2 ms: long enough to be frozen in the middle
OFTEN_SAVED = TOY.model_copy(
    update={"execution": TOY.execution.model_copy(update={"checkpoint_every_steps": 1, "keep_checkpoints": 2})}
)


def begun(root: Path, config: ToyConfig = TOY) -> RunDirectory:
    """A run directory that a first attempt left after one step, as SIGTERM makes it."""
    HOOKS["batch"] = lambda: signal.raise_signal(signal.SIGTERM)
    try:
        assert toy_attempt(root, config).end_state == "sigterm"
    finally:
        del HOOKS["batch"]
    return toy_directory(root, config)


def state_of(pid: int) -> str:
    """The kernel's letter: T when it is frozen."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def freeze(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    while state_of(pid) != "T":
        time.sleep(0.001)


FORKS = """
import os, sys
import torch
import tests.tasks.tiny
from tasks.training.__main__ import main
from tests.storage.test_holders import saves
torch.optim.AdamW([torch.zeros(1)])  # imports half of torch
for line in sys.stdin:
    what, *given = line.rstrip().split("|")
    if what == "wait":
        print(os.waitstatus_to_exitcode(os.waitpid(int(given[0]), 0)[1]), flush=True)
    elif pid := os.fork():
        print(pid, flush=True)
    else:
        code = 1
        if what == "train":
            sys.stderr = open(f"{given[0]}-{os.getpid()}.stderr", "w", buffering=1)
        try:
            code = main(["--run-dir", *given, "--own", "."]) if what == "train" else saves(*given)
        finally:
            os._exit(code)
"""


class Forks:
    """A process that forks others: importing torch for each takes five seconds, and a fork nothing.

    One that trains calls what `python -m tasks.training` calls, and has its stderr beside the run directory. Lines of
    words are its orders.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", FORKS],
            cwd=runs.REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._forked: list[int] = []

    def ask(self, *words: object) -> int:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write("|".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def fork(self, *words: object) -> int:
        self._forked.append(self.ask(*words))
        return self._forked[-1]

    def wait(self, pid: int) -> int:
        self._forked.remove(pid)
        return self.ask("wait", pid)

    def end(self) -> None:
        for pid in self._forked:
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module", autouse=True)
def forks() -> Iterator[Forks]:
    """Started first, so that it imports while other tests do something else."""
    forks = Forks()
    yield forks
    forks.end()


def believe_to_be_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process becomes one of another machine, with less patience for heartbeats that stand still."""
    identity = locks.process_identity() | {"host": "node18", "boot_id": "another boot"}
    monkeypatch.setattr(locks, "process_identity", lambda: identity)
    monkeypatch.setattr(locks, "acquire", partial(locks.acquire, dead_after_seconds=DEAD_AFTER))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    root = tmp_path_factory.mktemp("undisturbed")
    assert toy_attempt(root, TOY).exit_code == 0
    return what_must_be_equal(toy_directory(root, TOY))


# ------------------------------------------------------------------------------------------------ started at once


def test_of_two_commands_started_at_once_one_works_and_the_other_names_it_and_ends_with_2(forks, tmp_path, undisturbed):
    """The one that works is held still until the other has ended, which must not take it for dead meanwhile."""
    run = begun(tmp_path)
    both = {forks.fork("train", run.path) for _ in range(2)}
    deadline = time.monotonic() + PATIENCE
    while locks.highest(run.path / "locks") < 2 and time.monotonic() < deadline:
        time.sleep(0.002)
    holder = durable.read_json(run.path / "locks" / "2.json")["pid"]
    freeze(holder)
    (other,) = both - {holder}
    assert forks.wait(other) == 2
    errors = Path(f"{run.path}-{other}.stderr").read_text()
    assert errors.startswith(f"held: {run.path} is held by a live process: pid {holder} on {os.uname().nodename}")
    os.kill(holder, signal.SIGCONT)
    assert forks.wait(holder) == 0
    assert what_must_be_equal(run) == undisturbed
    assert markers.check(run, {}, full=True).holds
    assert sorted(file.name for file in run.attempts.glob("*.json")) == ["0001.json", "0002.json"]


# --------------------------------------------------------------------------------- frozen, taken over and revived


@dataclass
class Revived:
    """What became of a command that was frozen, taken over and revived."""

    run: RunDirectory
    contender: Outcome
    left: dict[str, bytes]
    found: dict[str, bytes]
    exit_code: int
    record: dict[str, object]


def what_others_own(run: RunDirectory) -> dict[str, bytes]:
    """Every file but what attempt 2 may write of itself: its record, log and lock, and what a clock measured."""
    own = ("attempts/0002.", "locks/2.", "progress.json", "timing.jsonl")
    return {name: data for name, data in runs.tree(run.path).items() if not name.startswith(own)}


def wait_and_freeze(pids: dict[str, int], of: dict[str, RunDirectory]) -> None:
    """Freezes each training at its moment: `training` after 20 steps, `saving` while a checkpoint is half written."""
    waiting, deadline = dict(pids), time.monotonic() + PATIENCE
    while waiting and time.monotonic() < deadline:
        for moment, pid in list(waiting.items()):
            run = of[moment]
            assert state_of(pid) != "Z", "it ended before its moment"
            if moment == "training" and run.timing_file.read_bytes().count(b"\n") > 20:
                freeze(pid)
                del waiting[moment]
            elif moment == "saving" and half_written(run):
                freeze(pid)
                if half_written(run):
                    del waiting[moment]
                else:
                    os.kill(pid, signal.SIGCONT)
        time.sleep(0.0005)
    assert not waiting


def half_written(run: RunDirectory) -> bool:
    """Whether a checkpoint is being written, with its first file there and its last one not.

    Its step is one after which no metric row is due soon: the write is then what notices the take-over first.
    """
    written = [folder for folder in run.checkpoints.glob(".tmp-*") if int(folder.name.split("-")[1]) % 10 in (2, 3, 4)]
    return any((folder / "model.safetensors").exists() for folder in written) and not any(
        (folder / "manifest.json").exists() for folder in written
    )


@pytest.fixture(scope="module")
def revived(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> dict[str, Revived]:
    of = {
        "training": begun(tmp_path_factory.mktemp("training"), TOY),
        "saving": begun(tmp_path_factory.mktemp("saving"), OFTEN_SAVED),
    }
    pids = {moment: forks.fork("train", run.path) for moment, run in of.items()}
    wait_and_freeze(pids, of)
    contenders, left = {}, {}
    with pytest.MonkeyPatch.context() as monkeypatch:
        believe_to_be_elsewhere(monkeypatch)
        for moment, run in of.items():
            assert state_of(pids[moment]) == "T" and not run.result_file.exists()
            contenders[moment] = toy_attempt(run.root, TOY)
            left[moment] = what_others_own(run)
    for pid in pids.values():
        os.kill(pid, signal.SIGCONT)
    return {
        moment: Revived(
            run,
            contenders[moment],
            left[moment],
            exit_code=forks.wait(pids[moment]),
            found=what_others_own(run),
            record=durable.read_json(run.attempts / "0002.json"),
        )
        for moment, run in of.items()
    }


MOMENTS = ["training", "saving"]


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_contender_finishes_what_the_frozen_one_began_with_the_bytes_of_an_undisturbed_run(
    revived, undisturbed, moment
):
    assert revived[moment].contender == Outcome("finished")
    assert what_must_be_equal(revived[moment].run) == undisturbed


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_revived_one_changes_no_byte_that_the_contender_left(revived, moment):
    """No checkpoint, no metrics row, no result and no marker of it, and nothing is taken away."""
    assert revived[moment].found == revived[moment].left
    assert not runs.temporaries(revived[moment].run.path)
    assert markers.check(revived[moment].run, {}, full=True).holds
    assert locks.highest(revived[moment].run.path / "locks") == 3


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_revived_one_ends_with_1_and_says_that_it_was_taken_over(revived, moment):
    assert revived[moment].exit_code == 1
    record = revived[moment].record
    assert (record["end_state"], record["exit_code"]) == ("crashed", 1)
    assert record["diagnosis"]["category"] == "taken over"
    assert "lock 2 was taken over by lock 3" in record["diagnosis"]["summary"]


# ---------------------------------------------------------------------- taken over at each moment of a durable write

WEIGHTS = {"model": {"weight": torch.ones(3)}}


def saves(folder: str, moment: str) -> int:
    """Saves a checkpoint and prunes, in a process of its own that freezes itself at `moment` of the save."""
    lock = locks.acquire(Path(folder, "locks"))
    checkpoints = Checkpoints(Path(folder, "checkpoints"), {}, lock)
    for step in (10, 20):
        checkpoints.save(step, WEIGHTS, {})

    def reached(now: str, _: object = None) -> None:
        if now == moment:
            os.kill(os.getpid(), signal.SIGSTOP)

    durable.reached = reached
    reached("not begun")
    checkpoints.save(20, WEIGHTS, {})
    checkpoints.prune(1)
    lock.release()
    return 0


@pytest.mark.parametrize(
    "moment", ["not begun", "begun", "tensors written", "written", "synced", "old renamed away", "renamed", "durable"]
)
def test_one_that_freezes_at_any_moment_of_a_save_and_comes_back_leaves_the_contenders_checkpoints_alone(
    forks, tmp_path, monkeypatch, moment
):
    pid = forks.fork("save", tmp_path, moment)
    while state_of(pid) != "T":
        time.sleep(0.001)
    believe_to_be_elsewhere(monkeypatch)
    lock = locks.acquire(tmp_path / "locks")
    durable.remove_leftovers(tmp_path)
    checkpoints = Checkpoints(tmp_path / "checkpoints", {}, lock)
    newest = checkpoints.newest_verified()
    assert newest is not None
    for step in range(newest.step + 10, 50, 10):
        checkpoints.save(step, WEIGHTS, {"of": "the contender"}, needs=[20])
        checkpoints.prune(2)
    left = runs.tree(tmp_path / "checkpoints")
    os.kill(pid, signal.SIGCONT)
    forks.wait(pid)
    lock.release()
    assert runs.tree(tmp_path / "checkpoints") == left
    read = {str(newest.step)}  # what the contender read is kept: nothing that it wrote was read back
    assert {name.split("/")[0] for name in left} == {"20", "30", "40"} | read


# -------------------------------------------------------------------------------------- what the dead leave behind


@pytest.fixture
def left_by_the_dead(tmp_path: Path) -> RunDirectory:
    """A training that was killed: no release, and half a metrics row."""
    run = begun(tmp_path, SHORT)
    (run.path / "locks" / "1.released").unlink()
    with run.metrics_file.open("ab") as file:
        file.write(b'{"step":')
    return run


def _rewrite_lock(run: RunDirectory, **changed: object) -> None:
    file = run.path / "locks" / "1.json"
    file.write_bytes(durable.canonical_json(durable.read_json(file) | changed))


@pytest.mark.parametrize(
    ("changed", "waits"),
    [
        ({"pid": 2**22 + 1}, False),
        ({"pid": 1}, False),
        ({"process_start": "1"}, False),
        ({"boot_id": "before the reboot"}, True),
        ({"host": "node17", "boot_id": "another boot", "slurm_job_id": "4711"}, True),
    ],
    ids=["killed", "pid reused", "pid reused by the process that asks", "machine restarted", "another host"],
)
def test_the_training_of_a_dead_holder_goes_on_with_the_bytes_of_an_undisturbed_run(
    left_by_the_dead, tmp_path, monkeypatch, changed, waits
):
    """Only one that cannot be seen is waited for."""
    _rewrite_lock(left_by_the_dead, **changed)
    monkeypatch.setattr(locks, "acquire", partial(locks.acquire, dead_after_seconds=DEAD_AFTER))
    watched: list[Path] = []
    moves = locks._heartbeat_moves
    monkeypatch.setattr(locks, "_heartbeat_moves", lambda file, seconds: watched.append(file) or moves(file, seconds))
    assert toy_attempt(left_by_the_dead.root, SHORT) == Outcome("finished")
    assert bool(watched) == waits
    assert toy_attempt(tmp_path / "undisturbed", SHORT) == Outcome("finished")
    undisturbed = toy_directory(tmp_path / "undisturbed", SHORT)
    assert what_must_be_equal(left_by_the_dead) == what_must_be_equal(undisturbed)


def test_a_training_on_another_host_whose_heartbeat_moves_is_left_alone(left_by_the_dead, monkeypatch):
    run = left_by_the_dead
    _rewrite_lock(run, host="node17", boot_id="another boot", slurm_job_id="4711")
    monkeypatch.setattr(locks, "acquire", partial(locks.acquire, dead_after_seconds=PATIENCE))
    before = {name: data for name, data in runs.tree(run.path).items() if name != "locks/1.alive"}
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(0.05):
            durable.replace_quickly(run.path / "locks" / "1.alive", {"at": time.time()})

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        outcome = toy_attempt(run.root, SHORT)
    finally:
        ended.set()
        thread.join()
    assert (outcome.end_state, outcome.exit_code) == ("held", 2)
    assert "on node17, job 4711" in outcome.message
    assert {name: data for name, data in runs.tree(run.path).items() if name != "locks/1.alive"} == before
