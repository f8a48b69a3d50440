"""The sweep: seeds share what does not depend on them, and only several seeds compare the arms."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from flows import command
from storage import durable
from tests.conftest import RunHere


def test_a_sweep_runs_only_what_depends_on_the_seed_and_gives_an_interval(
    run_here: RunHere, smoke_root: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(smoke_root, tmp_path / "runs"))
    code, printed = run_here("--root", root, "--seeds", "42", "7", module="flows.sweep")
    assert code == 0 and "over 2 seeds" in printed and "study smoke, seeds 7, 42, in " in printed, printed
    runs = {stage: len(list((root / "smoke" / stage).iterdir())) for stage in os.listdir(root / "smoke")}
    assert runs == {
        "setup": 1, "base": 1, "constrain": 1, "train-baseline": 2, "train-monotonic": 2, "evaluate": 2, "uat": 2,
        "hotflip": 2, "aggregate": 3,
    }  # fmt: skip
    (results,) = [
        r for f in root.glob("smoke/aggregate/*/final_results.json") if "of_seed" in (r := durable.read_json(f))
    ]
    difference = results["monotonic_minus_baseline_nats_per_token"]
    assert results["seeds"] == [42, 7] and difference["seeds"] == 2
    assert difference["interval"][0] < difference["mean"] < difference["interval"][1]


def test_a_dry_run_says_which_seed_each_stage_belongs_to(run_here: RunHere, tmp_path: Path) -> None:
    code, printed = run_here("--root", tmp_path, "--seeds", "42", "7", "--dry-run", module="flows.sweep")
    told = [line.rpartition("  ")[2] for line in printed.splitlines()]
    assert code == 0
    assert Counter(told) == {"(seed 42)": 6, "(seed 7)": 6, "(all cells)": 4}, printed


@pytest.mark.parametrize("seeds", [["42"], ["42", "42"]])
def test_a_sweep_needs_different_seeds(seeds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--profile", "smoke", "--root", str(tmp_path), "--seeds", *seeds]
    assert command.main("flows.sweep", arguments) == 2
    assert "two or more different seeds" in capsys.readouterr().err


def test_one_seed_beside_several_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--profile", "smoke", "--root", str(tmp_path), "--seeds", "1", "2", "--seed", "3"]
    assert command.main("flows.sweep", arguments) == 2
    assert "give --seeds" in capsys.readouterr().err
