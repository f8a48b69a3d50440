"""Runs the training command, kills it, and tells from what lies on the disk where the kill hit."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage import durable, locks
from storage.checkpoints import MANIFEST, STATE
from storage.run_directory import RunDirectory, fingerprint
from tasks.stage.configuration import Configuration
from tasks.stage.run import Stage
from tests.conftest import REPOSITORY
from tests.kill.summary import IN_A_WRITE, KILLS, WHERE
from tests.kill.toy import TRAINED, trained
from tests.side_by_side import COUNTED

POLL_SECONDS = 0.0005
TOO_LONG_SECONDS = 600.0


def _temporary(folder: Path) -> set[Any]:
    return {name for name in folder.glob(durable.TEMPORARY_PREFIX + "*") if folder.is_dir()}


def _lines(file: Path) -> set[Any]:
    return set(range(file.read_bytes().count(b"\n"))) if file.exists() else set()


SIGHTS: dict[str, Callable[[Path], set[Any]]] = {
    "lock taken": lambda run: set((run / "locks").glob("*.json")),
    "micro-batch": lambda run: _lines(run / TRAINED),
    "step done": lambda run: _lines(run / "timing.jsonl"),
    "metric row": lambda run: _lines(run / "metrics.jsonl"),
    "write begun": lambda run: _temporary(run / "checkpoints"),
}
"""What can be seen of a victim from outside: each grows as it works."""


@dataclass(frozen=True)
class Strike:
    """One kill: at the `nth` time that a path like `pattern` reaches `moment`, by the victim itself (victim.py).

    Or, when `moment` is one of SIGHTS, from outside: the command is as a person starts it, and is killed `seconds`
    after `nth` new things came in sight. `torn`: a file of the newest checkpoint is damaged first.
    """

    moment: str
    pattern: str = ""
    nth: int = 1
    seconds: float = 0.0
    torn: bool = False

    @property
    def from_outside(self) -> bool:
        return self.moment in SIGHTS


class Victims:
    """Starts the command: forked from a process that has imported torch, or fresh, which takes three seconds more."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.kill.victim"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=REPOSITORY,
        )

    def close(self) -> None:
        self._server.communicate("", timeout=TOO_LONG_SECONDS)

    def run(self, run: Path, strike: Strike | None = None, fresh: bool = False) -> int:
        """The command's exit code, or minus the signal that ended it."""
        aimed = [strike.moment, strike.pattern, strike.nth] if strike and not strike.from_outside else []
        watched = strike if strike and strike.from_outside else None
        before = SIGHTS[watched.moment](run) if watched else set()  # before it starts: it may be quicker than we are
        if not fresh:
            pid = self._ask([str(run), *aimed])
            _watch(pid, run, watched, before)
            return self._ask([])
        module = (
            ["tests.kill.victim", run, *aimed] if aimed else ["tasks.training", "--run-dir", run, "--own", REPOSITORY]
        )
        command = [sys.executable, "-m", *map(str, module)]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=REPOSITORY)
        _watch(process.pid, run, watched, before)
        return process.wait()

    def _ask(self, question: list[Any]) -> int:
        assert self._server.stdin and self._server.stdout
        self._server.stdin.write(json.dumps(question) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())


def _watch(pid: int, run: Path, strike: Strike | None, before: set[Any]) -> None:
    """Returns when the process has ended, which it does at the strike; somebody else asks for its exit code.

    `before` is what was in sight before it started.
    """
    process, deadline = os.pidfd_open(pid), time.monotonic() + TOO_LONG_SECONDS
    sight = SIGHTS[strike.moment] if strike else lambda _: set()
    new, poll = set[Any](), POLL_SECONDS if strike else TOO_LONG_SECONDS
    try:
        while not _ended(process, poll):
            new |= sight(run) - before
            if strike and len(new) >= strike.nth:
                time.sleep(strike.seconds)
                signal.pidfd_send_signal(process, signal.SIGKILL)
                strike = None
            if time.monotonic() > deadline:
                signal.pidfd_send_signal(process, signal.SIGKILL)
                raise AssertionError(f"the command on {run} still ran after {TOO_LONG_SECONDS:g} s")
    finally:
        os.close(process)


def _ended(process: int, seconds: float) -> bool:
    return bool(select.select([process], [], [], seconds)[0])


def begin(root: Path, study: str, stage: Stage, config: Configuration, inputs: dict[str, RunDirectory]) -> RunDirectory:
    """A run directory with as much of stage.json as the command needs to begin: it writes the rest itself."""
    prints = {role: given.fingerprint for role, given in inputs.items()}
    print_ = fingerprint(stage.name, stage.version, config.scientific(), config.external_inputs(), prints)
    run = RunDirectory(root, study, stage.name, print_)
    run.path.mkdir(parents=True)
    described = {
        "stage": stage.name,
        "study": study,
        "version": stage.version,
        "work": stage.work,
        "fingerprint": print_,
        "configuration_type": f"{stage.config.__module__}:{stage.config.__name__}",
        "configuration": config.model_dump(mode="json"),
        "inputs": {role: {"stage": given.stage, "fingerprint": given.fingerprint} for role, given in inputs.items()},
    }
    durable.write_json(run.stage_file, described)
    return run


class KilledRun:
    """One run that is killed again and again, and what was seen of it."""

    def __init__(self, victims: Victims, run: RunDirectory, chance: random.Random, fresh_every: int) -> None:
        self._victims, self.run, self._chance, self._fresh_every = victims, run, chance, fresh_every
        self._torn: set[bytes] = set()
        self._steps_before: list[int] = []
        self._newest_before = 0
        self.hits: list[str] = []
        self.went_on_from: dict[int, int] = {}
        """Attempt -> step of the newest good checkpoint when it began."""

    def strike(self, strike: Strike) -> None:
        """Starts the command and kills it; asserts that the kill was one and that the attempt began where it had to."""
        while strike.torn and not self._tear_newest():
            self.strike(Strike("durable", "checkpoints/*"))
        fresh = (COUNTED[KILLS] + 1) % self._fresh_every == 0
        leftovers = set(self.run.path.rglob(durable.TEMPORARY_PREFIX + "*"))
        code = self._one_attempt(strike, fresh)
        assert code == -signal.SIGKILL, f"{strike} after {self.hits} hit nothing, exit code {code}: {self.last_log()}"
        self.hits.append(self._where(leftovers))
        COUNTED[KILLS] += 1
        COUNTED[WHERE + self.hits[-1]] += 1
        COUNTED["kills from outside"] += strike.from_outside
        COUNTED["kills of a fresh process"] += fresh
        COUNTED["kills that left metric rows"] += self._rows_to_cut()
        COUNTED["kills in a window"] += self._begun_since_step() > 1

    def finish(self) -> None:
        """Lets the command run to its end."""
        code = self._one_attempt(None, fresh=False)
        assert code == 0, f"after {self.hits}: exit code {code}: {self.last_log()}"
        leftovers = [
            name for name in self.run.path.rglob(durable.TEMPORARY_PREFIX + "*") if name.parent.name != "locks"
        ]
        assert not leftovers, leftovers
        COUNTED["killed runs"] += 1

    def last_log(self) -> str:
        """What the newest attempt said."""
        logs = sorted(self.run.attempts.glob("*.log"))
        return f"{self.run.path}\n{logs[-1].read_text() if logs else 'no log'}"

    def _one_attempt(self, strike: Strike | None, fresh: bool) -> int:
        number = locks.highest(self.run.path / "locks")
        newest = self._newest_before = self._newest_step()
        self._steps_before = self._timed("step")
        code = self._victims.run(self.run.path, strike, fresh)
        done = self._timed("step")[len(self._steps_before) :]
        expected = list(range(newest + 1, newest + 1 + len(done)))
        assert done == expected, f"after {self.hits}: went on from {newest} and trained {done}: {self.last_log()}"
        if (attempt := locks.highest(self.run.path / "locks")) > number:
            self.went_on_from[attempt] = newest
        return code

    def _good(self) -> list[Path]:
        """Checkpoints that were not torn, newest first."""
        folders = [folder for folder in self.run.checkpoints.glob("[0-9]*") if (folder / MANIFEST).exists()]
        good = [folder for folder in folders if (folder / MANIFEST).read_bytes() not in self._torn]
        return sorted(good, key=lambda folder: -int(folder.name))

    def _newest_step(self) -> int:
        return next((int(folder.name) for folder in self._good()), 0)

    def _tear_newest(self) -> bool:
        """Damages the newest checkpoint as a failing disk does; False where the one before cannot be gone on from."""
        good = self._good()
        if len(good) < 2:
            return False
        best = durable.read_json(good[1] / STATE)["position"]["best_step"]
        if best is not None and not (self.run.checkpoints / str(best)).exists():
            return False
        self._torn.add((good[0] / MANIFEST).read_bytes())
        file = good[0] / f"{self._chance.choice(['model', 'optimizer'])}.safetensors"
        data = file.read_bytes()
        half = len(data) // 2
        file.write_bytes(data[:half] + self._chance.choice([b"", bytes(len(data) - half)]))  # cut short, or zeros
        return True

    def _rows_to_cut(self) -> bool:
        """Whether there are metric rows beyond the newest good checkpoint."""
        kept = next((durable.read_json(good / STATE)["metrics"]["length"] for good in self._good()), 0)
        return self.run.metrics_file.exists() and self.run.metrics_file.stat().st_size > kept

    def _where(self, leftovers_before: set[Path]) -> str:
        """Where the kill hit, by what it left."""
        left = sorted(set(self.run.path.rglob(durable.TEMPORARY_PREFIX + "*")) - leftovers_before)
        writes = [folder for folder in left if folder.parent == self.run.checkpoints]
        if len(writes) > 1:
            return IN_A_WRITE + "the old one renamed away"
        if writes:
            names = {file.name for file in writes[0].iterdir()}
            if MANIFEST in names:
                return IN_A_WRITE + "all written, not renamed"
            return IN_A_WRITE + ("some tensors written" if names else "folder begun")
        if any(name.name.startswith(durable.TEMPORARY_PREFIX + "model-") for name in left):
            return "at the end: the model being published"
        if (self.run.path / "model").exists():
            return "at the end: model published, up to the marker"
        if self._newest_step() not in (self._newest_before, *self._timed("checkpoint")):
            return "after a checkpoint's rename, before its end was seen"
        return self._where_in_training()

    def _where_in_training(self) -> str:
        if (begun := self._begun_since_step()) > 1:
            return "in a window, after its first micro-batch"
        if begun or self._timed("step") != self._steps_before:
            return "between windows, or in a first micro-batch"
        return "before the first micro-batch"

    def _begun_since_step(self) -> int:
        """Micro-batches that the newest attempt began after its last step; only the toy tells."""
        attempt = locks.highest(self.run.path / "locks")
        mine = [examples for number, examples in trained(self.run.path) if number == attempt]
        return mine[::-1].index(None) if None in mine else len(mine)

    def _timed(self, what: str) -> list[int]:
        file = self.run.timing_file
        rows = map(json.loads, file.read_bytes().splitlines() if file.exists() else [])
        return [row[what] for row in rows if what in row]
