"""SIGKILL of the whole study at several moments: what is finished at last is what an undisturbed run gives.

Only the study's own command, with Prefect, is struck here; test_kill_training.py strikes the stages.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from storage import attempts, durable
from storage.checkpoints import STATE
from tests.conftest import REPOSITORY, RunHere

SEED, TOO_LONG_SECONDS = 20261121, 600.0
IN_A_TRAINING, IN_AN_ATTACK = ("base", 12), ("uat", None)
"""Stage, and how many steps that attempt trained before the kill; None: a random moment after it began."""
CHECKPOINT_EVERY = "execution.checkpoint_every_steps=7"  # no divisor of the 10 steps between metric rows


@pytest.mark.parametrize(
    "strikes",
    [[IN_A_TRAINING], pytest.param([IN_A_TRAINING, IN_AN_ATTACK], marks=pytest.mark.long)],
)
def test_a_study_killed_at_several_moments_ends_with_the_same_weights(
    strikes: list[tuple[str, int | None]], prefect_server: str, run_here: RunHere, smoke_root: Path, new_root: Path
) -> None:
    """The kill in a training strikes after a metric row and before the checkpoint that would hold it."""
    moments = random.Random(SEED)
    for stage, steps in strikes:
        _kill(new_root, prefect_server, stage, steps, moments.uniform(0.0, 0.3))
    code, printed = run_here("--root", new_root, "--set", CHECKPOINT_EVERY)
    assert code == 0, printed
    assert len(_results(smoke_root)) == 16 and _results(new_root) == _results(smoke_root)
    for stage in ("base", "train-baseline", "train-monotonic"):
        killed, undisturbed = (next(r.glob(f"smoke/{stage}/*/metrics.jsonl")) for r in (new_root, smoke_root))
        assert killed.read_bytes() == undisturbed.read_bytes()
    assert not list(new_root.rglob(durable.TEMPORARY_PREFIX + "*"))


def _kill(root: Path, server: str, stage: str, steps: int | None, delay: float) -> None:
    """Starts the study and kills it in its next attempt at `stage`; once more where the kill came too late for that."""
    for _ in range(5):
        _kill_once(root, server, stage, steps, delay)
        (run,) = root.glob(f"smoke/{stage}/*/")
        if (attempts.newest(run / "attempts") or {})["end_state"] is None and (steps is None or _rows_to_cut(run)):
            return
        shutil.rmtree(run)
    raise AssertionError(f"no kill hit {stage} where it should")


def _kill_once(root: Path, server: str, stage: str, steps: int | None, delay: float) -> None:
    def lines() -> int:
        return sum(len(file.read_bytes().splitlines()) for file in root.glob(f"smoke/{stage}/*/timing.jsonl"))

    def begun() -> int:
        return len(list(root.glob(f"smoke/{stage}/*/attempts/*.json")))

    rows, before = lines(), begun()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "flows.robustness",
            *("--profile", "smoke", "--root", str(root), "--set", CHECKPOINT_EVERY),
        ],
        cwd=REPOSITORY,
        env=os.environ | {"PREFECT_API_URL": server},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + TOO_LONG_SECONDS
    try:
        while lines() < rows + steps if steps is not None else begun() == before:
            assert process.poll() is None, f"the study ended before it came to {stage}"
            assert time.monotonic() < deadline, f"the study did not come to {stage}"
            time.sleep(0.002)
        if steps is None:
            time.sleep(delay)
    finally:
        process.kill()
        process.wait()


def _rows_to_cut(run: Path) -> bool:
    """Whether there are metric rows beyond the newest checkpoint."""
    newest = max((run / "checkpoints").glob("[0-9]*"), key=lambda folder: int(folder.name), default=None)
    kept = durable.read_json(newest / STATE)["metrics"]["length"] if newest else 0
    return (run / "metrics.jsonl").stat().st_size > kept


def _results(root: Path) -> dict[str, object]:
    """Stage and fingerprint -> what it returned, with the digests of weights and records."""
    files = (root / "smoke").glob("*/*/result.json")
    return {str(file.parent.relative_to(root)): durable.read_json(file) for file in files}
