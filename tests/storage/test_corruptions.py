"""Seeded corruptions of checkpoints, markers, record parts, metrics and locks, each with its expected outcome.

A case is a small state that was built once (name -> bytes), one mutation of it, and what `EXPECTED` says must come of
it. What resumes, holds or counts afterwards must be byte-equal to what was built; everything else must be refused by
name. A mutation that changed nothing (zeros over zeros), or nothing that a JSON file says, must do no harm.
"""

from __future__ import annotations

import json
import logging
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from storage import checkpoints as checkpoints_module
from storage import durable, locks, markers
from storage.checkpoints import Checkpoints
from storage.errors import CheckFailed, Held
from storage.locks import Lock, LockLost
from storage.records import RecordParts
from storage.rows import Rows
from storage.run_directory import RunDirectory
from tests.storage import runs

IDENTITY = {"fingerprint": "f" * 64, "inputs": {"setup": "a" * 64}}
STEPS = (10, 20, 30)
DEAD_AFTER = 60.0

State = dict[str, bytes]
"""What lies in a folder: relative name -> bytes."""

# ---------------------------------------------------------------------------------------------------- mutations


def truncate(state: State, name: str, chance: random.Random, _: Before) -> State:
    return state | {name: state[name][: chance.randrange(max(1, len(state[name])))]}


def empty(state: State, name: str, chance: random.Random, _: Before) -> State:
    """What a power loss leaves of a file whose name was durable before its bytes were."""
    return state | {name: b""}


def zero(state: State, name: str, chance: random.Random, _: Before) -> State:
    return state | {name: bytes(len(state[name]))}


def zero_tail(state: State, name: str, chance: random.Random, _: Before) -> State:
    """What a power loss leaves of a file whose last blocks were never written."""
    cut = chance.randrange(max(1, len(state[name])))
    return state | {name: state[name][:cut] + bytes(len(state[name]) - cut)}


def flip(state: State, name: str, chance: random.Random, _: Before) -> State:
    data = bytearray(state[name] or b"\0")
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return state | {name: bytes(data)}


def append(state: State, name: str, chance: random.Random, _: Before) -> State:
    return state | {name: state[name] + chance.randbytes(chance.randrange(1, 64))}


def swap(state: State, name: str, chance: random.Random, before: Before) -> State:
    """Two files of one kind change places; of a kind of which there is one only, its halves do."""
    data, others = before.state[name], [file for file in before.alike(name) if file != name]
    if not others:
        return state | {name: data[len(data) // 2 :] + data[: len(data) // 2]}
    other = chance.choice(others)
    return state | {name: before.state[other], other: data}


def swap_folders(state: State, name: str, chance: random.Random, before: Before) -> State:
    """The whole folder of another checkpoint under this one's name, and the other way round."""
    here = name.rpartition("/")[0]
    there = chance.choice([f"checkpoints/{step}" for step in STEPS if f"checkpoints/{step}" != here])
    renamed = {here: there, there: here}
    return {
        str(Path(renamed.get(str(Path(file).parent), Path(file).parent), Path(file).name)): state[file]
        for file in state
    }


def stale(state: State, name: str, chance: random.Random, before: Before) -> State:
    """What this file held at another time or in another run, or what the same file of another step holds."""
    return state | {name: chance.choice(before.stale(name))}


def delete(state: State, name: str, chance: random.Random, _: Before) -> State:
    return {file: data for file, data in state.items() if file != name}


def extra(state: State, name: str, chance: random.Random, before: Before) -> State:
    """A file that nobody listed, beside this one."""
    folder = name.rpartition("/")[0]
    added = chance.choice(["notes.txt", "extra.safetensors", "manifest.json.bak", ".nfs0001"])
    return state | {f"{folder}/{added}" if folder else added: chance.randbytes(chance.randrange(64))}


def rewrite(state: State, name: str, chance: random.Random, _: Before) -> State:
    """The same bytes, written again at another time."""
    return dict(state)


Mutation = Callable[[State, str, random.Random, "Before"], State]

# ----------------------------------------------------------------------------------------------- what must come of it

UNHARMED = "nothing is refused, and the newest is used"
PASSED_OVER = "passed over by name: the newest other checkpoint is used, and CheckFailed names all when there is none"
BEFORE_IT = "the newest checkpoint whose rows end before the change is used, CheckFailed when there is none; cut back"
REFUSED = "the marker does not hold, and the file is named"
ABSENT = "there is no marker"
AGAIN = "the part does not count, the others do, and it is written again with the same bytes"
HELD = "the live holder keeps the run"
TAKEN = "the next number takes the run, and only it can commit"
TAKEN_AT_ONCE = "the next number takes the run without a wait, and only it can commit"
ONE = "held, or taken and the old holder cannot commit: never two"

_DAMAGES = (truncate, empty, zero, zero_tail, flip, append, swap, stale, delete)


def _all(outcome: str, *others: Mutation, **changed: str) -> dict[Mutation, str]:
    """The same outcome for every damage, but for `changed`; equal bytes never do harm."""
    return {mutation: changed.get(mutation.__name__, outcome) for mutation in (*_DAMAGES, *others)}


EXPECTED: dict[str, dict[Mutation, str]] = {
    "tensors of a checkpoint": _all(PASSED_OVER, extra) | {rewrite: UNHARMED},
    "state of a checkpoint": _all(PASSED_OVER, extra) | {rewrite: UNHARMED},
    "manifest of a checkpoint": _all(PASSED_OVER, swap_folders, extra) | {rewrite: UNHARMED},
    "metrics": _all(BEFORE_IT) | {extra: UNHARMED, rewrite: UNHARMED},
    "marker": _all(REFUSED, delete=ABSENT) | {extra: UNHARMED, rewrite: UNHARMED},
    "output": _all(REFUSED) | {extra: UNHARMED, rewrite: UNHARMED},
    "output in a folder": _all(REFUSED, extra) | {rewrite: UNHARMED},
    "record part": _all(AGAIN) | {extra: UNHARMED, rewrite: UNHARMED},
    "note of a record part": _all(AGAIN) | {extra: UNHARMED, rewrite: UNHARMED},
    # a lock that cannot be read says nothing about its holder, so the heartbeat decides; one that reads as another
    # holder's is that one's, and the old holder is shut out. One that is deleted while its holder is at work, or may
    # come back: see the end of this file
    "lock of a live holder here": {
        **{mutation: HELD for mutation in (truncate, empty, zero, zero_tail, append, extra, rewrite)},
        **{flip: ONE, swap: TAKEN_AT_ONCE, stale: TAKEN_AT_ONCE},
    },
    "lock of a live holder elsewhere": {
        **{mutation: HELD for mutation in (truncate, empty, zero, zero_tail, append, extra, rewrite)},
        **{flip: ONE, swap: TAKEN_AT_ONCE, stale: TAKEN_AT_ONCE},
    },
    "lock of a dead holder here": {**_all(TAKEN), extra: TAKEN_AT_ONCE, rewrite: TAKEN_AT_ONCE},
    "lock of a dead holder elsewhere": {m: TAKEN for m in (*_DAMAGES, extra, rewrite) if m is not delete},
    "heartbeat of a live holder here": _all(HELD, extra, rewrite),
    "heartbeat of a live holder elsewhere": _all(HELD, extra, rewrite),
    "heartbeat of a dead holder elsewhere": _all(TAKEN, extra, rewrite),
    "release of a holder here": _all(TAKEN_AT_ONCE, extra, rewrite, delete=HELD),
    "release of a holder elsewhere": _all(TAKEN_AT_ONCE, extra, rewrite, delete=TAKEN),
}
ROWS = [(kind, mutation, outcome) for kind, row in EXPECTED.items() for mutation, outcome in row.items()]

# ------------------------------------------------------------------------------------------------------ small states


@dataclass
class Before:
    """A state as it was built, and what else its files could hold. `others` are the same folder in other lives."""

    folder: Path
    state: State
    others: tuple[State, ...] = ()
    present: State | None = None

    def alike(self, name: str) -> list[str]:
        """The files with the same end of their name: the manifests, the tensors, the locks."""
        return [file for file in self.state if Path(file).suffix == Path(name).suffix]

    def stale(self, name: str) -> list[bytes]:
        here = [self.state[file] for file in self.state if Path(file).name == Path(name).name]
        there = [other[name] for other in self.others if name in other]
        return [data for data in here + there if data != self.state[name]]

    def write(self, after: State) -> None:
        """Makes the folder hold exactly `after`."""
        present = self.read() if self.present is None else self.present
        for name in present.keys() - after.keys():
            (file := self.folder / name).unlink()
            if file.parent != self.folder and not any(file.parent.iterdir()):
                file.parent.rmdir()
        for name, data in after.items():
            if present.get(name) != data:
                (self.folder / name).parent.mkdir(exist_ok=True)
                (self.folder / name).write_bytes(data)
        self.present = after

    def read(self) -> State:
        """What is there now, remembered for the next `write`: every case reads last, so that none reads twice."""
        self.present = runs.tree(self.folder)
        return self.present


class Clock:
    """Stands in for `time` in storage.locks: sleeping costs nothing, and a live holder beats meanwhile."""

    def __init__(self) -> None:
        self.now, self.beats = 0.0, lambda: None

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.beats()


@dataclass
class Built:
    """Every small state of this file."""

    lock: Lock
    clock: Clock
    training: Before
    run: RunDirectory
    finished: Before
    records: Before
    holders: dict[str, Before]
    holder: Lock


def _training(folder: Path, lock: Lock, identity: dict[str, Any], seed: int) -> State:
    """Metrics, and a checkpoint after every third row; two rows come after the last one."""
    folder.mkdir(parents=True)
    rows = Rows(folder / "metrics.jsonl", lock)
    checkpoints = Checkpoints(folder / "checkpoints", identity, lock, {"seed": seed})
    chance = torch.Generator().manual_seed(seed)
    for step in range(1, STEPS[-1] + 3):
        rows.append({"step": step, "loss": 1 / (step + seed)})
        if step in STEPS:
            groups = {
                "model": {"weight": torch.randn(3, 4, generator=chance), "bias": torch.zeros(3)},
                "optimizer": {"0.step": torch.tensor(step), "0.exp_avg": torch.randn(3, 4, generator=chance)},
                "rng": {"torch": torch.randint(0, 256, (40,), dtype=torch.uint8, generator=chance)},
            }
            checkpoints.save(step, groups, {"position": {"step": step}, "metrics": rows.position()})
    return runs.tree(folder)


def _finished(root: Path, seed: int, loss: float, attempts: int = 1) -> RunDirectory:
    run = runs.run_of(root, seed=seed)
    runs.fill(run, seed)
    durable.write_json(run.result_file, {"loss": loss, "seed": seed})
    durable.write_json(run.path / "model" / "tokenizer" / "vocabulary.json", {"seed": seed})
    Rows(run.metrics_file).append({"step": 2, "loss": loss + seed})
    for _ in range(attempts):
        runs.finish(run)
    return run


def _records(folder: Path, lock: Lock, identity: dict[str, Any], value: float) -> State:
    parts = RecordParts(folder, identity, lock)
    for key in ("a", "b", "c"):
        parts.write(key, _record_rows(key, value))
    return runs.tree(folder)


def _record_rows(key: str, value: float) -> list[dict[str, Any]]:
    return [{"model": "m", "example_id": f"{key}{number}", "loss": value / (number + 3)} for number in range(20)]


def _locks(folder: Path, *, dead: bool, elsewhere: bool, released: bool) -> Before:
    """Locks 1 and 2: the first was released long ago by a process that is dead, the second is as asked."""
    me = locks.process_identity()
    gone = me | {"process_start": "1"}
    second = (gone if dead else me) | ({"boot_id": "another boot", "host": "node17"} if elsewhere else {})
    state = {
        "1.json": durable.canonical_json(gone),
        "1.alive": b'{"at":0}',
        "1.released": b"",
        "2.json": durable.canonical_json(second),
        "2.alive": b'{"at":1}',
    }
    another_life = {
        "2.json": durable.canonical_json(gone | {"process_start": "2"}),
        "2.alive": b'{"at":0.5}',
        "2.released": b"at another time",
    }
    return Before(folder, state | ({"2.released": b""} if released else {}), (another_life,))


@pytest.fixture(scope="module")
def built() -> Iterator[Built]:
    """Built once, in memory if the machine has a disk there: the cases only rewrite what they changed."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="ratchet-corruptions-", dir=memory if memory.is_dir() else None))
    lock = locks.acquire(root / "locks")
    holder = locks.acquire(root / "held" / "locks")
    holder.release()  # ends its thread: it beats when the clock below says so, and never else
    holder.number = 2
    try:
        training = _training(root / "training", lock, IDENTITY, 1)
        older = _training(root / "older", lock, IDENTITY, 2)
        foreign = _training(root / "foreign", lock, IDENTITY | {"fingerprint": "0" * 64}, 1)
        run = _finished(root / "runs", 1, 0.25)
        lives = [_finished(root / "older runs", 1, 0.75), _finished(root / "seeds", 2, 0.25)]
        lives.append(_finished(root / "again", 1, 0.25, attempts=2))
        records = _records(root / "records", lock, IDENTITY, 1.0)
        other_records = [_records(root / "old records", lock, IDENTITY, 2.0), _records(root / "r", lock, {}, 1.0)]
        holders = {
            f"{life} {where}": _locks(
                holder.directory, dead=life == "dead", elsewhere=where == "elsewhere", released=life == "released"
            )
            for life in ("live", "dead", "released")
            for where in ("here", "elsewhere")
        }
        yield Built(
            lock,
            Clock(),
            Before(root / "training", training, (older, foreign)),
            run,
            Before(run.path, runs.tree(run.path), tuple(runs.tree(life.path) for life in lives)),
            Before(root / "records", records, tuple(other_records)),
            holders,
            holder,
        )
    finally:
        lock.release()
        shutil.rmtree(root)


@pytest.fixture(autouse=True)
def _no_waiting(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "time", built.clock)


# ---------------------------------------------------------------------------------------------------- one case


@dataclass(frozen=True)
class Case:
    """One corruption: everything follows from its seed and its row of the table."""

    seed: int
    kind: str
    mutation: Mutation
    expected: str

    def run(self, built: Built) -> None:
        """Mutates and judges; raises AssertionError naming the case when anything but the expected came of it."""
        mutated: list[str] = []
        try:
            self._judge(built, random.Random(self.seed), mutated)
        except Exception as error:
            for before in (built.training, built.finished, built.records):
                before.present = None  # who knows what is there now
            raise AssertionError(
                f"seed {self.seed}: {self.mutation.__name__} of {self.kind} ({', '.join(mutated)}); expected: "
                f"{self.expected}; but: {type(error).__name__}: {error}"
            ) from error

    def _judge(self, built: Built, chance: random.Random, mutated: list[str]) -> None:
        if "checkpoint" in self.kind or self.kind == "metrics":
            _judge_training(built, self, chance, mutated)
        elif self.kind == "marker" or "output" in self.kind:
            _judge_marker(built, self, chance, mutated)
        elif "record part" in self.kind:
            _judge_records(built, self, chance, mutated)
        else:
            _judge_locks(built, self, chance, mutated)

    def mutate(self, before: Before, names: list[str], chance: random.Random, mutated: list[str]) -> State:
        """The state with each of `names` mutated, written to its folder."""
        after = before.state
        for name in names:
            mutated.append(name)
            after = self.mutation(after, name, chance, before)
        before.write(after)
        return after


def _says(data: bytes | None, *keys: str) -> Any:
    """What a JSON file says under `keys` (none: all of it), or its bytes when it is no JSON object."""
    try:
        value = json.loads(data or b"")
        return {key: value.get(key) for key in keys} if keys else value
    except (ValueError, AttributeError):
        return data


def _equal(require: bool, what: str) -> None:
    if not require:
        raise AssertionError(what)


def _judge_training(built: Built, case: Case, chance: random.Random, mutated: list[str]) -> None:
    """Resumes as the training loop does, and compares what was found with what was built."""
    before = built.training
    original = before.state
    after = case.mutate(before, _training_names(case, chance), chance, mutated)
    usable = [step for step in STEPS if case.expected != PASSED_OVER or not _checkpoint_differs(original, after, step)]
    positions = {step: json.loads(original[f"checkpoints/{step}/state.json"])["metrics"]["length"] for step in STEPS}
    metrics = after.get("metrics.jsonl", b"")
    if case.expected == BEFORE_IT:
        usable = [step for step in STEPS if metrics[: positions[step]] == original["metrics.jsonl"][: positions[step]]]

    rows = Rows(before.folder / "metrics.jsonl", built.lock)
    checkpoints = Checkpoints(before.folder / "checkpoints", IDENTITY, built.lock, {"seed": 1})
    try:
        with _what_is_logged() as logged:
            found = checkpoints.newest_verified(lambda candidate: rows.cut_back(candidate.state["metrics"]))
    except CheckFailed as failed:
        _equal(not usable, f"refused though {usable} are whole: {failed}")
        for step in STEPS:
            where = "metrics.jsonl" if case.kind == "metrics" else f"checkpoints/{step}"
            _equal(where in str(failed.measured), f"{where} is not named in {failed}")
        _equal(before.read() == after, "a refusal changed files")
        return
    _equal(found is not None, "begins anew, unasked")
    _equal(bool(usable) and found.step == usable[-1], f"continues from {found.step}, {usable} are whole")
    for step in STEPS[STEPS.index(found.step) + 1 :]:
        naming = [line for line in logged if line.startswith(f"checkpoint {step} is passed over: ")]
        _equal(len(naming) == 1 and str(before.folder) in naming[0], f"step {step} is not named in {logged}")
    folder = f"checkpoints/{found.step}/"
    now = before.read()
    for name in original:
        if name.startswith(folder) and not name.endswith("manifest.json"):
            _equal(now.get(name) == original[name], f"{name} is not what was saved")
    _equal(found.state == json.loads(original[f"{folder}state.json"]), "the state is not what was saved")
    _equal(torch.equal(found.tensors("rng")["torch"], _tensor(original, folder)), "a tensor is not what was saved")
    kept = original["metrics.jsonl"][: positions[found.step]]
    _equal(now == after | {"metrics.jsonl": kept}, "the metrics were not cut back, or another file changed")
    if case.seed % 10 == 0:
        next_step = found.step + 5
        checkpoints.save(next_step, {"model": {"weight": torch.ones(3)}}, {})
        checkpoints.prune(1)
        newest = checkpoints.newest_verified()
        _equal(newest is not None and newest.step == next_step, "what was saved next was pruned")
        before.read()


@contextmanager
def _what_is_logged() -> Iterator[list[str]]:
    """The lines about checkpoints, which go nowhere else meanwhile: pytest would keep those of 10,000 cases."""
    log, logged, handler = checkpoints_module.LOG, [], logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    log.addHandler(handler)
    before = log.level, log.propagate
    log.propagate = False
    log.setLevel(logging.INFO)
    try:
        yield logged
    finally:
        log.removeHandler(handler)
        log.propagate = before[1]
        log.setLevel(before[0])


def _tensor(original: State, folder: str) -> torch.Tensor:
    from safetensors.torch import load

    return load(original[f"{folder}rng.safetensors"])["torch"]


def _training_names(case: Case, chance: random.Random) -> list[str]:
    """The file to mutate, of the newest checkpoint, of an older one, or of every one."""
    if case.kind == "metrics":
        return ["metrics.jsonl"]
    if case.kind == "tensors of a checkpoint":
        file = chance.choice(["model", "optimizer", "rng"]) + ".safetensors"
    else:
        file = "state.json" if case.kind == "state of a checkpoint" else "manifest.json"
    scope = chance.choice(["newest", "newest", "older", "every"])
    if file == "manifest.json" and case.mutation in (stale, swap_folders) and scope == "every":
        scope = "newest"  # a whole one of another run asks to begin anew; two swaps are none
    chosen = {"newest": STEPS[-1:], "older": (chance.choice(STEPS[:-1]),), "every": STEPS}[scope]
    return [f"checkpoints/{step}/{file}" for step in chosen]


MANIFEST_KEYS = ("step", "lock", "identity", "configuration", "needs", "files", "digest")


def _checkpoint_differs(original: State, after: State, step: int) -> bool:
    """Whether any byte of the checkpoint changed, or anything that its manifest says."""
    folder = f"checkpoints/{step}/"

    def content(state: State) -> dict[str, Any]:
        files = {name: data for name, data in state.items() if name.startswith(folder)}
        manifest = f"{folder}manifest.json"
        return files | {manifest: _says(files.get(manifest), *MANIFEST_KEYS)}

    return content(original) != content(after)


def _judge_marker(built: Built, case: Case, chance: random.Random, mutated: list[str]) -> None:
    """The full check and the quick one, of a finished run."""
    before, run = built.finished, built.run
    listed = json.loads(before.state["COMPLETE.json"])["outputs"]
    chosen = {
        "marker": ["COMPLETE.json"],
        "output": [name for name in listed if "/" not in name],
        "output in a folder": [name for name in listed if "/" in name],
    }[case.kind]
    after = case.mutate(before, [chance.choice(chosen)], chance, mutated)
    full, quick = (markers.check(run, runs.INPUTS, full=full) for full in (True, False))
    _equal(before.read() == after, "a check changed files")
    changed = [name for name in {**before.state, **after} if _meaning(before.state, name) != _meaning(after, name)]
    _equal(full.holds == quick.holds, f"the quick check gives {quick}, the full one {full}")
    _equal(full.present == (case.expected != ABSENT), f"{full}")
    if case.expected == UNHARMED or not changed:
        _equal(full.holds, f"{full.reason}")
        return
    _equal(not full.holds, f"{changed} changed, and the marker is believed")
    if case.expected == REFUSED:
        names = ["marker" if name == "COMPLETE.json" else name for name in changed]
        if case.kind == "marker" and case.mutation is stale:
            names += listed  # it is whole: it differs from the run's own in the outputs that it describes
        _equal(any(name in full.reason for name in names), f"none of {names} is named in {full.reason!r}")


def _meaning(state: State, name: str) -> Any:
    return _says(state.get(name)) if name == "COMPLETE.json" else state.get(name)


def _judge_records(built: Built, case: Case, chance: random.Random, mutated: list[str]) -> None:
    """Which parts count, and that the others are written again as they were."""
    before = built.records
    suffix = "parquet" if case.kind == "record part" else "json"
    after = case.mutate(before, [f"{chance.choice('abc')}.{suffix}"], chance, mutated)
    parts = RecordParts(before.folder, IDENTITY, built.lock)
    for key in "abc":
        same = before.state[f"{key}.parquet"] == after.get(f"{key}.parquet") and (
            _says(before.state[f"{key}.json"]) == _says(after.get(f"{key}.json"))
        )
        _equal(parts.has(key) == same, f"part {key} counts: {parts.has(key)}, is as it was: {same}")
        _equal(same or case.expected == AGAIN, f"part {key} was changed by what should change nothing")
        if not same:
            parts.write(key, _record_rows(key, 1.0))
            _equal(parts.has(key), f"part {key} does not count though it was written again")
            after = after | {name: before.state[name] for name in (f"{key}.parquet", f"{key}.json")}
    _equal(before.read() == after, "what was written again differs from before, or another file changed")


def _judge_locks(built: Built, case: Case, chance: random.Random, mutated: list[str]) -> None:
    """Another process tries to take the run over; afterwards at most one can commit."""
    what, life, where = _lock_kind(case.kind)
    before, clock, old = built.holders[f"{life} {where}"], built.clock, built.holder
    before.present = None  # every kind of holder has the same folder
    clock.beats = old._heartbeat if life == "live" else lambda: None
    case.mutate(before, [f"2.{what}"], chance, mutated)
    began, new = clock.now, None
    try:
        new = locks.acquire(old.directory, DEAD_AFTER)
    except Held:
        pass
    waited = clock.now - began
    if life == "live" and new is None:
        clock.sleep(5.0)  # it goes on beating
    may_commit = {"old": None if (life, where) in _GONE else old, "new": new}
    able = [name for name, lock in may_commit.items() if lock is not None and _can_commit(lock)]
    if new is not None:
        new.release()
    _equal(waited <= DEAD_AFTER + 1, f"waited for {waited:.0f} s")
    _equal(len(able) == 1, f"these can commit: {able}")
    _equal(able == (["old"] if new is None else ["new"]), f"acquired: {new is not None}, can commit: {able}")
    if case.expected == HELD:
        _equal(new is None, "a live holder was taken over")
    elif case.expected in (TAKEN, TAKEN_AT_ONCE):
        _equal(new is not None, "a dead holder keeps the run")
        _equal(waited == 0 or case.expected == TAKEN, f"waited for {waited:.0f} s, though it could be known at once")


_GONE = {("dead", "here")}
"""The holders that cannot come back. One elsewhere that is taken for dead may only be frozen."""


def _lock_kind(kind: str) -> tuple[str, str, str]:
    """`heartbeat of a live holder elsewhere` -> alive, live, elsewhere."""
    words = kind.split()
    what = {"lock": "json", "heartbeat": "alive", "release": "released"}[words[0]]
    return what, "released" if what == "released" else words[3], words[-1]


def _can_commit(lock: Lock) -> bool:
    try:
        lock.check()
        return True
    except LockLost:
        return False


# ------------------------------------------------------------------------------------------------------ the tests


@pytest.mark.parametrize("cases", [1_000, pytest.param(10_000, marks=pytest.mark.long)])
def test_corruptions_each_come_out_as_the_table_says(cases, built):
    counted: Counter[tuple[str, str]] = Counter()
    for seed in range(cases):
        kind, mutation, expected = ROWS[seed % len(ROWS)]
        Case(seed, kind, mutation, expected).run(built)
        counted[kind, mutation.__name__] += 1
    assert sum(counted.values()) == cases
    assert set(counted) == {(kind, mutation.__name__) for kind, row in EXPECTED.items() for mutation in row}
    assert {mutation.__name__ for row in EXPECTED.values() for mutation in row} == {
        *("truncate", "empty", "zero", "zero_tail", "flip", "append"),
        *("swap", "swap_folders", "stale", "delete", "extra", "rewrite"),
    }


def _reads_only_the_manifest(folder: Path) -> dict[str, Any]:
    return durable.read_json(folder / "manifest.json")


def _cuts_by_length_only(rows: Rows, position: dict[str, Any]) -> None:
    rows._path.write_bytes(rows._path.read_bytes()[: position["length"]])


def _is_there(parts: RecordParts, key: str) -> bool:
    return all(file.exists() for file in parts._names(key))


SWITCHED_OFF: list[tuple[str, Mutation, object, str, object]] = [
    ("tensors of a checkpoint", flip, checkpoints_module, "verify", _reads_only_the_manifest),
    ("state of a checkpoint", stale, checkpoints_module, "verify", _reads_only_the_manifest),
    ("manifest of a checkpoint", stale, checkpoints_module, "verify", _reads_only_the_manifest),
    ("metrics", flip, Rows, "cut_back", _cuts_by_length_only),
    ("marker", flip, markers, "_wrong_identity", lambda *_: ""),
    ("output", flip, markers, "_wrong_outputs", lambda *_: ""),
    ("output in a folder", extra, markers, "_wrong_outputs", lambda *_: ""),
    ("record part", flip, RecordParts, "has", _is_there),
    ("note of a record part", stale, RecordParts, "has", _is_there),
    ("lock of a live holder here", stale, Lock, "check", lambda _: None),
    ("lock of a live holder elsewhere", truncate, locks, "_heartbeat_moves", lambda *_: False),
    ("lock of a dead holder here", truncate, locks, "_heartbeat_moves", lambda *_: True),
    ("lock of a dead holder elsewhere", truncate, locks, "_heartbeat_moves", lambda *_: True),
    ("heartbeat of a live holder here", delete, locks, "_process_start", lambda _: None),
    ("heartbeat of a live holder elsewhere", delete, locks, "_heartbeat_moves", lambda *_: False),
    ("heartbeat of a dead holder elsewhere", zero, locks, "_heartbeat_moves", lambda *_: True),
    ("release of a holder here", delete, locks, "_process_start", lambda _: None),
    ("release of a holder elsewhere", delete, locks, "_heartbeat_moves", lambda *_: True),
]
"""A kind of file, a mutation of it, and the verification without which that mutation goes unnoticed."""


@pytest.mark.parametrize(
    ("kind", "mutation", "owner", "verification", "off"), SWITCHED_OFF, ids=lambda value: getattr(value, "__name__", "")
)
def test_with_its_verification_switched_off_a_corruption_goes_unnoticed(
    built, monkeypatch, kind, mutation, owner, verification, off
):
    cases = [Case(seed, kind, mutation, EXPECTED[kind][mutation]) for seed in range(20)]
    for case in cases:
        case.run(built)
    monkeypatch.setattr(owner, verification, off)
    wrong = []
    for case in cases:
        try:
            case.run(built)
        except AssertionError as error:
            wrong.append(f"{error}")
    assert wrong, "it is refused all the same: this verification is not what notices it"


def test_every_kind_of_file_has_a_mutation_that_only_its_verification_notices():
    assert {kind for kind, *_ in SWITCHED_OFF} == set(EXPECTED)


# ------------------------------------------------------------------------------------ found here first, and mended


def test_with_every_manifest_flipped_into_another_runs_nothing_is_begun_anew_unasked(built):
    before = built.training
    names = [f"checkpoints/{step}/manifest.json" for step in STEPS]
    before.write(before.state | {name: before.state[name].replace(b"ffff", b"gfff", 1) for name in names})
    checkpoints = Checkpoints(before.folder / "checkpoints", IDENTITY, built.lock)
    with pytest.raises(CheckFailed):
        checkpoints.newest_verified()


def test_a_manifest_whose_identity_is_no_object_is_passed_over(built):
    before, name = built.training, f"checkpoints/{STEPS[-1]}/manifest.json"
    manifest = json.loads(before.state[name]) | {"identity": None}
    before.write(before.state | {name: durable.canonical_json(manifest)})
    found = Checkpoints(before.folder / "checkpoints", IDENTITY, built.lock).newest_verified()
    assert found is not None and found.step == STEPS[-2]


def test_an_unreadable_checkpoint_does_not_crowd_out_the_one_that_was_just_saved(tmp_path, built):
    checkpoints = Checkpoints(tmp_path, IDENTITY, built.lock)
    for step in (10, 20):
        checkpoints.save(step, {"model": {"weight": torch.ones(3)}}, {})
    (tmp_path / "20" / "model.safetensors").unlink()
    (tmp_path / "20" / "model.safetensors").mkdir()  # any OSError that is no FileNotFoundError
    found = checkpoints.newest_verified()
    assert found is not None and found.step == 10
    checkpoints.save(15, {"model": {"weight": torch.ones(3)}}, {})
    checkpoints.prune(1)
    found = checkpoints.newest_verified()
    assert found is not None and found.step == 15


def test_a_record_part_under_the_name_of_another_does_not_count(built):
    before = built.records
    before.write(before.state | {f"b.{suffix}": before.state[f"a.{suffix}"] for suffix in ("parquet", "json")})
    assert not RecordParts(before.folder, IDENTITY, built.lock).has("b")


@pytest.mark.parametrize("where", ["here", "elsewhere"])
def test_a_live_lock_that_is_deleted_never_lets_two_commit(built, where):
    kind = f"lock of a live holder {where}"
    Case(0, kind, delete, ONE).run(built)
