"""SIGKILL of the whole study at several moments: what is finished at last is what an undisturbed run gives."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from storage import durable
from tests.conftest import REPOSITORY, Command

SEED = 20261121
KILLS = 6


def test_a_study_killed_at_several_moments_ends_with_the_same_weights(
    prefect_server: str, run_study: Command, smoke_root: Path, tmp_path: Path
) -> None:
    """Each kill waits for a sign of work in another stage, then strikes a random moment later."""
    moments = random.Random(SEED)
    hits = []
    signs = ["setup", "base", "base", "train-baseline", "train-monotonic", "evaluate"][:KILLS]
    for stage in signs:
        hits.append(_kill_once(tmp_path, prefect_server, stage, moments.uniform(0.0, 0.3)))
    assert sum(hits) >= 3, f"only {sum(hits)} kills hit a study at work"
    done = run_study("--profile", "smoke", "--root", tmp_path, "--set", "execution.checkpoint_every_steps=7")
    assert done.returncode == 0, done.stdout + done.stderr
    for stage in ("base", "constrain", "train-baseline", "train-monotonic"):
        assert _result(tmp_path, stage)["weights_digest"] == _result(smoke_root, stage)["weights_digest"]
    assert _result(tmp_path, "evaluate") == _result(smoke_root, "evaluate")
    for stage in ("base", "train-baseline", "train-monotonic"):
        killed, undisturbed = (next(r.glob(f"smoke/{stage}/*/metrics.jsonl")) for r in (tmp_path, smoke_root))
        assert killed.read_bytes() == undisturbed.read_bytes()
    assert not list(tmp_path.rglob(durable.TEMPORARY_PREFIX + "*"))


def _kill_once(root: Path, server: str, stage: str, delay: float) -> bool:
    """Starts the study, kills it `delay` seconds after the next attempt at `stage` began; False if it ended first."""
    before = len(list(root.glob(f"smoke/{stage}/*/attempts/*.json")))
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.robustness", "--profile", "smoke", "--root", str(root),
         "--set", "execution.checkpoint_every_steps=7"],
        cwd=REPOSITORY,
        env=os.environ | {"PREFECT_API_URL": server},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        if len(list(root.glob(f"smoke/{stage}/*/attempts/*.json"))) > before:
            time.sleep(delay)
            break
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def _result(root: Path, stage: str) -> dict[str, object]:
    return durable.read_json(next(root.glob(f"smoke/{stage}/*/result.json")))
