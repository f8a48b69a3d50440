"""What a person can see and run of a job: the dry run's text, the submitted script, its name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flows import dispatched
from tests.slurm.harness import Bench, toy_study

pytestmark = pytest.mark.slurm_long


def test_the_dry_run_prints_the_bytes_that_are_submitted_and_the_script_can_be_run_by_hand(
    bench: Bench, tmp_path: Path
) -> None:
    root = tmp_path / "runs"
    ((stage, shown),) = dispatched.scripts("tests.slurm.toy", toy_study("texts", steps=12), str(root))
    assert stage == "toy-training" and not list(root.rglob("jobs")), "a dry run begins nothing"

    one = bench.dispatch(root, "texts", steps=12)
    job = one.job()
    kept = one.folder / "jobs" / "0001.sbatch"
    assert kept.read_text() == shown
    (tmp_path / "asked").mkdir()
    slurms = bench.cluster.slurm("scontrol", "write", "batch_script", job, str(tmp_path / "asked" / "script"))
    assert slurms and (tmp_path / "asked" / "script").read_text() == shown
    one.run.wait("Completed", seconds=60)
    digest = one.digest

    (one.folder / "COMPLETE.json").unlink()
    done = subprocess.run(["sbatch", "--wait", str(kept)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr + kept.with_suffix(".log").read_text()
    assert (one.folder / "COMPLETE.json").exists() and one.digest == digest
