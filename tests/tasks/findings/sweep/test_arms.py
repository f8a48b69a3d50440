"""A sweep compares its arms: paired by seed, corrected together, and as a file that `ratchet compare` takes."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from flows import command
from storage import durable
from tasks.findings.sweep.sweep import CELLS
from tests.tasks.findings.sweep.test_sweep import made

SEEDS = (1, 2, 3, 4)
NOISE = np.random.default_rng(7).normal(size=(3, len(SEEDS)))


def accuracy(arm: str, seed: int) -> float:
    """`full` is lower by 1 with some spread; `frozen` differs from `scratch` by chance."""
    common, of_arm = 10 * NOISE[0, seed - 1], NOISE[("scratch", "full", "frozen").index(arm), seed - 1]
    return float(common + {"scratch": 0.0, "full": -1.0, "frozen": 0.0}[arm] + 0.1 * of_arm)


def swept(folder: Path, seeds: tuple[int, ...] = SEEDS, **changed: Any) -> tuple[dict[str, Any], Path, dict[str, Any]]:
    arms = ("scratch", "full", "frozen")
    given = {f"seed {seed}": {"accuracy": {arm: accuracy(arm, seed) for arm in arms}, "letters": 26} for seed in seeds}
    config = {"keys": ["seed"], "cells": {f"seed {seed}": [seed] for seed in seeds}}
    published, out = made(folder, given, **(config | changed))
    return durable.read_json(out / "final_results.json"), out, published.as_json()


def test_each_arm_is_compared_with_the_first_by_pairs_corrected_together(tmp_path):
    found, folder, result = swept(tmp_path)
    full, frozen = found["comparisons"]["accuracy"]
    assert (full["arm"], full["reference"], full["seeds"]) == ("full", "scratch", 4)
    ours, theirs = ([accuracy(arm, seed) for seed in SEEDS] for arm in ("full", "scratch"))
    p = ttest_rel(ours, theirs).pvalue
    assert full["p"] == pytest.approx(p) and full["p_adjusted"] == pytest.approx(2 * p) and full["better"]
    assert not frozen["better"] and not frozen["worse"]
    assert result["answer"][0] == "accuracy: full is lower than scratch."
    assert any("of other seeds alone, not of other texts or events" in said for said in result["not_shown"])
    assert "figures/answer.svg" in result["figures"] and (folder / "figures" / "answer.svg").is_file()


def test_nothing_is_called_lower_by_too_few_seeds(tmp_path):
    found, _, result = swept(tmp_path, (1, 2))
    said = "accuracy: no difference is shown: 2 seeds are too few."
    assert result["answer"][0] == said and not any(one["better"] for one in found["comparisons"]["accuracy"])


def test_keys_of_chance_are_seeds_whatever_they_are_called(tmp_path):
    named = {f"seed {seed}": [seed] for seed in SEEDS}
    found, _, _ = swept(tmp_path, keys=["model.init_seed"], chance=["model.init_seed", "seed"], cells=named)
    assert found["comparisons"]["accuracy"][0]["seeds"] == 4
    found, _, result = swept(tmp_path / "other", keys=["width"], cells=named)
    assert "comparisons" not in found and result["answer"][0].startswith("Not compared: no seed varies")


@pytest.mark.parametrize("nested", [False, True])
def test_a_training_is_compared_by_its_metrics_and_by_what_decides_first(tmp_path, nested):
    """Seen: the headline was of `best_step`, and Holm counted steps and the loss as a ratio."""
    given, cells = {}, {}
    for seed, p in product(SEEDS, (0.0, 0.5)):
        name, loss = f"seed {seed}, p {p}", 1 + 0.1 * seed + p + 0.01 * p * seed
        training = {
            "budget": {"steps": 40}, "steps": 40, "epochs": 4 * p + seed, "best_step": seed, "best_loss": loss,
            "best_accuracy": 0.5 + p / 2 + 0.01 * p * seed**2, "trivial": {"guess": 2.0}, "ratio_to_trivial": loss / 2,
            "higher": ["accuracy"], "validations": [],
        }  # fmt: skip
        given[name] = {"training": training} if nested else training
        cells[name] = [seed, p]
    result, out = made(tmp_path, given, keys=["seed", "p"], cells=cells)
    assert result.answer[0] == "best_loss: p 0.5 is worse than p 0.0. best_accuracy: p 0.5 is better than p 0.0."
    found = durable.read_json(out / "final_results.json")["comparisons"]
    assert [*found] == ["best_loss", "best_accuracy"]
    one, other = sorted(row["p"] for (row,) in found.values())
    assert sorted(row["p_adjusted"] for (row,) in found.values()) == pytest.approx(
        sorted([max(2 * one, other), 2 * one])
    )
    table = (out / "table.md").read_text()
    assert "above 0 the arm is better" in table and "over the 2 comparisons" in table and "epochs" in table


def test_one_arm_over_seeds_answers_with_its_mean(tmp_path):
    """Seen: "there is one arm, more than 24, or a number that nothing changes", and the mean stood further below."""
    given = {f"seed {seed}": {"rate": seed / 10} for seed in SEEDS}
    result, _ = made(tmp_path, given, keys=["seed"], cells={name: [int(name[-1])] for name in given})
    assert "one arm" in result.answer[0] and "no number differs" not in result.answer[0]
    assert result.answer[1].startswith("rate: 0.25 (interval ") and "4 seeds" in result.answer[1]


def test_what_is_compared_with_nothing_is_said(tmp_path):
    """A seed that one arm lacks is left out of pairs and of the file."""
    assert "Not compared" not in " ".join(swept(tmp_path / "whole")[2]["not_shown"])
    given = {
        f"seed {seed}": {"loss": {arm: accuracy(arm, seed) for arm in arms}}
        for seed, arms in ((1, ("scratch", "full")), (2, ("scratch", "full")), (3, ("scratch",)))
    }
    result, out = made(tmp_path, given, keys=["seed"], cells={name: [int(name[-1])] for name in given})
    said = "Not compared, and not in cells.csv, since not every arm has that seed: scratch (seed 3)."
    assert said in result.not_shown and ",3," not in (out / CELLS).read_text()


def test_the_cells_are_a_file_that_compare_takes(tmp_path, capsys):
    found, folder, _ = swept(tmp_path)
    asked = ["--value", "accuracy", "--reference", "scratch", "--json"]
    assert command.ratchet(["compare", str(folder / CELLS), *asked]) == 0
    compared = {one["arm"]: one for one in json.loads(capsys.readouterr().out)["comparisons"]}
    for one in found["comparisons"]["accuracy"]:
        assert compared[one["arm"]]["p"] == pytest.approx(one["p"]), "the numbers are written in full"
