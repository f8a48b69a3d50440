"""D12, D15, D19, D24, D26, D29: numbers that were not what the report called them."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage import durable
from storage.errors import CheckFailed
from storage.records import read_records
from tasks.attacks.sweep import _require_distinct_seeds
from tasks.findings.document import Document
from tasks.language.blocks import Blocks
from tasks.language.losses import summary
from tasks.robustness.final_results import FinalResults
from tasks.robustness.study import Study
from tests.docs.quotes import document
from tests.tasks.robustness.edited import aggregated, contents, keep_consistent, train_with, written
from tests.tasks.tiny import finished_study, tiny_study

WINNER = re.compile(r"\b(most robust|more robust|winner|wins|better|worse|outperforms?)\b", re.IGNORECASE)
Stages = dict[str, dict[str, Any]]


def results() -> dict:
    return durable.read_json(finished_study().path("aggregate") / "final_results.json")


def report_of_it() -> Document:
    """What the report of the tiny study says."""
    return document("robustness", finished_study().path("aggregate") / "final_results.json")


def report_of(folder: Path, edit: Callable[[Stages], None]) -> tuple[dict, str]:
    """final_results.json and table.md of the tiny study, its stages changed by `edit`."""
    stages = contents()
    edit(stages)
    _, path = aggregated(folder / "out", written(folder, stages), finished_study().study)
    return durable.read_json(path / "final_results.json"), (path / "table.md").read_text()


def test_d12_texts_that_one_model_lost_to_memory_and_rates_of_the_rest(tmp_path):
    """A batch that did not fit was halved or dropped, and HotFlip texts that did not fit left the rate."""
    with pytest.raises(CheckFailed, match="hotflip on monotonic attacked the documents of attack-evaluation"):
        report_of(tmp_path, lambda stages: stages["hotflip-monotonic"]["rows"].pop(1))


def test_d15_a_threshold_relative_to_a_model_s_own_loss_that_favours_the_one_that_predicts_badly(tmp_path):
    """Perplexity 36 needed +0.54 nats to count as broken, perplexity 6.7 only +0.29."""
    clean, rise = {"baseline": 1.90, "monotonic": 3.58}, 0.40

    def edit(stages: Stages) -> None:
        for model, own in clean.items():
            for row in stages[f"hotflip-{model}"]["rows"]:
                row["clean_loss_sum_nats"] = row["tokens_scored"] * own
                row["text_clean_loss_sum_nats"] = row["text_tokens"] * own
                row["loss_sum_nats"] = row["tokens_scored"] * (own + rise)
                row["success"] = rise / own > 0.15
        keep_consistent(stages, "hotflip")

    numbers, table = report_of(tmp_path, edit)
    of_attack = numbers["attacks"]["hotflip"]
    for model, own in clean.items():
        effect = of_attack["effects"][model]
        assert effect["increase_nats_per_token"]["value"] == pytest.approx(rise)
        assert re.search(rf"^\| hotflip \| {model} +\| {own:.4f} \| +\+{rise:.4f} ", table, re.MULTILINE), "both shown"
    rates = [of_attack["effects"][model]["success_rate"]["value"] for model in clean]
    assert rates == [1.0, 0.0], "which the clean loss alone makes"
    (same,) = [row for row in of_attack["differences"] if (row["model"], row["reference"]) == tuple(clean)[::-1]]
    assert same["increase_nats_per_token"]["value"] == pytest.approx(0.0, abs=1e-9)


def test_d15_no_table_gives_a_relative_effect_or_a_success_without_the_clean_loss_and_what_the_attack_adds():
    found, relative = report_of_it(), 0
    for block in found.markdown().split("\n\n"):
        header = [cell.strip() for cell in block.splitlines()[0].split("|")]
        if "relative" in header:
            assert {"clean", "increase"} <= set(header), header
        assert "success" not in header or "clean" in header, header
        relative += "relative" in header
    assert relative == 1 and "%" not in "".join(found.numbers)


def test_d19_budgets_that_differ_and_are_called_identical():
    """Baseline 5 epochs at 1e-5, monotonic 10 at 5e-5; scripts and README said IDENTICAL."""
    spent = [arm["budget"] for arm in results()["arms"].values()]
    assert spent[0] == spent[1] == spent[2] and "the same budget: " in report_of_it().markdown()


def test_d19_arms_cannot_differ(tmp_path):
    study = tiny_study(tmp_path)
    budgets = [study.training_fields(arm)[0]["budget"] for arm in study.arms]
    assert len(budgets) == 3 and all(budget == budgets[0] for budget in budgets)
    with pytest.raises(ValidationError, match="unequal_budgets is no key any more: all arms train on budget"):
        tiny_study(tmp_path, unequal_budgets={"monotonic": {"epochs": 9.0}})
    with pytest.raises(ValidationError):
        Study.model_validate(study.model_dump() | {"monotonic_budget": {"epochs": 9.0}})


def test_d19_a_results_file_that_gives_the_baseline_s_settings_for_every_arm(tmp_path):
    """The T5 results said "num_epochs 5" and the baseline's rate for a monotonic run of seven epochs."""
    budget = finished_study().study.budget.model_copy(update={"epochs": 0.4})
    blocks = len(Blocks(finished_study().path("setup") / "text", "train"))
    with pytest.raises(CheckFailed, match="is the one that the stage was given"):
        report_of(tmp_path, lambda stages: train_with(stages, "monotonic", budget, blocks))


def test_d24_an_aggregator_that_reads_keys_which_no_stage_writes():
    """The keys were other ones: every mean over seeds was NaN, without an error."""
    rows = list(read_records(finished_study().path("evaluate") / "records.parquet"))
    assert results()["models"]["baseline"]["perplexity"] == summary(rows, "baseline").perplexity


def test_d24_every_number_of_the_aggregate_is_finite_and_nan_cannot_be_written(tmp_path):
    def numbers(value) -> list[float]:
        if isinstance(value, dict | list):
            inner = value.values() if isinstance(value, dict) else value
            return [number for one in inner for number in numbers(one)]
        return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []

    found = numbers(results())
    assert len(found) > 50 and all(map(math.isfinite, found))
    assert "NaN" in json.dumps({"mean": math.nan}), "what the old one wrote"
    with pytest.raises(ValueError, match="not JSON compliant"):
        durable.write_json(tmp_path / "ours.json", {"mean": math.nan})
    assert not (tmp_path / "ours.json").exists()


def test_d26_a_winner_that_stands_in_the_code():
    """Whichever arm the numbers favour, the words name no winner."""
    of_the_tiny_model = "did worse than a table of token frequencies"
    assert not WINNER.search(report_of_it().markdown().replace(of_the_tiny_model, ""))


def test_d26_one_seed_ranks_nothing():
    assert "One seed: differences describe these trainings and rank nothing." in report_of_it().markdown()


def test_d29_a_report_that_lists_what_was_never_run(tmp_path):
    """LAMBADA, HellaSwag and others stood in the documentation with expected accuracies; only losses were computed."""
    _, table = report_of(tmp_path, lambda stages: None)
    blocks = [block for block in table.split("\n\n") if re.match(r"\| .*\| run( directory)? +\|$", block, re.MULTILINE)]
    rows = [line for block in blocks for line in block.splitlines()[2:]]
    listed = {line.split("|")[-2].strip().rsplit("/", 1)[-1] for line in rows}
    assert listed and listed <= {marker.parent.name for marker in (tmp_path / "runs").rglob("COMPLETE.json")}


def test_two_seeds_with_equal_weights():
    """Identical files were reported as "identical across all three seeds, confirming stability"."""
    results = FinalResults.read_file(finished_study().path("aggregate") / "final_results.json")
    with pytest.raises(CheckFailed, match="seed 42, baseline and seed 2024, baseline: equal weights_digest"):
        _require_distinct_seeds({"seed 42": results, "seed 2024": results})
    _require_distinct_seeds({"seed 42": results})
