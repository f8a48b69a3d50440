"""SIGKILL of the whole study at several moments: what is finished at last is what an undisturbed run gives.

Only the study's own command, with Prefect, is struck here; test_kill_training.py strikes the stages.
"""

from __future__ import annotations

import random
import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from storage import attempts, durable
from storage.checkpoints import STATE
from tests.conftest import RunHere
from tests.forks import Forks

SEED = 20261121
CHECKPOINT_EVERY = "execution.checkpoint_every_steps=7"  # no divisor of the 10 steps between metric rows


@pytest.mark.parametrize("in_an_attack", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_study_that_is_killed_interrupted_and_bounded_ends_with_the_same_weights(
    in_an_attack: bool, forks: Forks, run_here: RunHere, smoke_root: Path, new_root: Path
) -> None:
    """The kill in a training strikes after a metric row and before the checkpoint that would hold it."""
    _kill(new_root, forks, "base", 12)
    code, printed = _start(new_root, forks, "base", 1, signal.SIGINT)
    assert code == 130 and printed.count("base             stops because of Ctrl-C (SIGINT): saving ...") == 1, printed
    record = attempts.newest(next(new_root.glob("smoke/base/*/attempts"))) or {}
    assert (record["end_state"], record["exit_code"]) == ("interrupted", 130)
    code, printed = run_here("--root", new_root, "--set", "execution.max_steps_per_run=10")
    assert code == 75 and "the same command goes on" in printed
    (step,) = re.findall(r"unfinished: base: stopped after step (\d+), this run's share", printed)
    assert "AwaitingRetry" not in printed and "out_of_time" not in printed
    if in_an_attack:
        _kill(new_root, forks, "uat", None)
    else:
        code, printed = run_here("--root", new_root, "--set", CHECKPOINT_EVERY)
        assert code == 0 and f"base             goes on from the checkpoint of step {step}" in printed, printed
    assert run_here("--root", new_root)[0] == 0
    assert len(_results(smoke_root)) == 16 and _results(new_root) == _results(smoke_root)
    for stage in ("base", "train-baseline", "train-monotonic"):
        killed, undisturbed = (next(r.glob(f"smoke/{stage}/*/metrics.jsonl")) for r in (new_root, smoke_root))
        assert killed.read_bytes() == undisturbed.read_bytes()
    assert not list(new_root.rglob(durable.TEMPORARY_PREFIX + "*"))


def _kill(root: Path, forks: Forks, stage: str, steps: int | None) -> None:
    """Starts the study and kills it in its next attempt at `stage`; once more where the kill came too late for that."""
    for _ in range(5):
        assert _start(root, forks, stage, steps, signal.SIGKILL)[0] == -signal.SIGKILL, f"it came to no {stage}"
        for run in root.glob(f"smoke/{stage}/*/"):  # one, or more of them where the next began
            if (attempts.newest(run / "attempts") or {})["end_state"] is None and (steps is None or _rows_to_cut(run)):
                return
            shutil.rmtree(run)
    raise AssertionError(f"no kill hit {stage} where it should")


def _start(root: Path, forks: Forks, stage: str, steps: int | None, number: int) -> tuple[int, str]:
    """One start, with the signal after so many steps of an attempt, or, for None, a random moment after it began."""

    def lines() -> int:
        return sum(len(file.read_bytes().splitlines()) for file in root.glob(f"smoke/{stage}/*/timing.jsonl"))

    def begun() -> int:
        return len(list(root.glob(f"smoke/{stage}/*/attempts/*.json")))

    rows, before = lines(), begun()

    def strike() -> bool:
        if steps is None and begun() > before:
            time.sleep(random.Random(SEED).uniform(0.0, 0.3))
        return begun() > before if steps is None else lines() >= rows + steps

    words = ("--profile", "smoke", "--root", root, "--set", CHECKPOINT_EVERY)
    return forks.run(root, "run", "robustness", *words, strike=strike, number=number)


def _rows_to_cut(run: Path) -> bool:
    """Whether there are metric rows beyond the newest checkpoint."""
    newest = max((run / "checkpoints").glob("[0-9]*"), key=lambda folder: int(folder.name), default=None)
    kept = durable.read_json(newest / STATE)["metrics"]["length"] if newest else 0
    return (run / "metrics.jsonl").stat().st_size > kept


def _results(root: Path) -> dict[str, object]:
    """Stage and fingerprint -> what it returned, with the digests of weights and records."""
    files = (root / "smoke").glob("*/*/result.json")
    return {str(file.parent.relative_to(root)): durable.read_json(file) for file in files}
