"""D12, D13, D15, D19, D24, D26, D29: numbers that were not what the report called them."""

from __future__ import annotations

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
from tasks.attacks.effects import attack_effect
from tasks.attacks.losses import summary
from tasks.findings.document import Document
from tasks.robustness.stages import for_trainings
from tasks.robustness.study import Study
from tasks.robustness.words import worse_than_frequencies
from tests.docs.quotes import document
from tests.tasks.robustness.edited import aggregated, contents, keep_consistent, train_with, typed, written
from tests.tasks.tiny import Here, finished_study, handles_of, tiny_study

WINNER = re.compile(r"\b(most robust|more robust|winner|wins|better|worse|outperforms?)\b", re.IGNORECASE)
Stages = dict[str, dict[str, Any]]


def results() -> dict:
    return durable.read_json(finished_study().path("aggregate") / "final_results.json")


def said_of_it() -> Document:
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

    def lost(stages: Stages) -> None:
        del stages["hotflip-monotonic"]["rows"][1]

    def ours() -> None:
        report_of(tmp_path, lost)

    def refuses_it(report: Callable[[], None]) -> bool:
        try:
            report()
        except CheckFailed as refusal:
            return "hotflip on monotonic attacked the documents of attack-evaluation" in str(refusal)
        return False

    assert refuses_it(ours)


def test_d13_losses_weighted_by_tokens_of_the_mask_or_by_texts():
    """A text of n tokens predicts n - 1: its mean loss was weighted by n; UAT gave every text the same weight."""
    texts = [(2, 9.0), (101, 3.0)]  # tokens, mean loss of the predicted ones
    rows = [
        {
            "model": "m",
            "example_id": str(n),
            "source": str(n),
            "tokens_scored": n - 1,
            "loss_sum_nats": (n - 1) * (mean + 1.0),
            "clean_loss_sum_nats": (n - 1) * mean,
            "text_tokens": n - 1,
            "text_clean_loss_sum_nats": (n - 1) * mean,
            "control_losses_sum_nats": [(n - 1) * mean],
            "blind_loss_sum_nats": (n - 1) * mean,
            "budget_losses_sum_nats": [(n - 1) * mean] * 3,
        }
        for n, mean in texts
    ]

    def ours_evaluate() -> float:
        clean = [row | {"loss_sum_nats": row["clean_loss_sum_nats"]} for row in rows]
        return summary(clean, "m").loss_nats_per_token

    def ours_attacks() -> float:
        return attack_effect(rows, "m", 100, 0.95).clean_loss_nats_per_token

    def every_predicted_token_counts_once(loss: Callable[[], float]) -> bool:
        return math.isclose(loss(), (1 * 9.0 + 100 * 3.0) / 101)

    assert every_predicted_token_counts_once(ours_evaluate)
    assert every_predicted_token_counts_once(ours_attacks)


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

    def ours() -> str:
        return report_of(tmp_path, edit)[1]

    def shows_that_the_attack_did_the_same_to_both(said: str) -> bool:
        numbers = [
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in said[said.find("## hotflip") : said.find("## Are the layers")].splitlines()
            if line.startswith("| ")
        ]
        increases = {line[0]: line[3] for line in numbers if line[0] in clean and len(line) == 9 and line[3][0] == "+"}
        losses = {line[0]: line[1] for line in numbers if line[0] in clean and line[2:3] and "%" in line[2]}
        between = [line[1] for line in numbers if line[0] == "monotonic - baseline"]
        return (
            increases == dict.fromkeys(clean, "+0.4000")
            and losses == {model: f"{own:.4f}" for model, own in clean.items()}  # the clean loss beside the rate
            and between[:1] == ["+0.0000"]
        )

    assert shows_that_the_attack_did_the_same_to_both(ours())


def test_d15_no_table_gives_a_relative_effect_or_a_success_without_the_clean_loss_and_what_the_attack_adds():
    said, relative = said_of_it().markdown(), 0
    for block in said.split("\n\n"):
        header = [cell.strip() for cell in block.splitlines()[0].split("|")]
        if "relative" in header:
            assert {"clean", "increase"} <= set(header), header
        if "success" in header and header[1] == "model":
            assert "clean" in header, header
        relative += "relative" in header
    assert relative == 2 and "%" not in "".join(said_of_it().numbers), "uat, hotflip"


def test_d19_budgets_that_differ_and_are_called_identical(tmp_path):
    """Baseline 5 epochs at 1e-5, monotonic 10 at 5e-5; scripts and README said IDENTICAL."""

    def ours(study: Study) -> tuple[bool, str]:
        handles = handles_of(tmp_path / "runs", study, Here)
        spent = [
            durable.read_json(handles[f"train-{arm}"].run.result_file)["training"]["budget"]
            for arm in ("baseline", "monotonic")
        ]
        return spent[0] == spent[1], (handles["aggregate"].run.path / "table.md").read_text()

    def said_and_done_agree(found: tuple[bool, str]) -> bool:
        equal, said = found
        return equal == bool(re.search("identical|the same budget", said, re.IGNORECASE))

    assert said_and_done_agree(ours(tiny_study(tmp_path)))


def test_d19_arms_cannot_differ(tmp_path):
    study = tiny_study(tmp_path)
    budgets = [for_trainings(study, arm)[0].budget for arm in study.arms]
    assert len(budgets) == 3 and all(budget == budgets[0] for budget in budgets)
    with pytest.raises(ValidationError, match="unequal_budgets is no key any more: all arms train on budget"):
        tiny_study(tmp_path, unequal_budgets={"monotonic": {"epochs": 9.0}})
    with pytest.raises(ValidationError):
        Study.model_validate(study.model_dump() | {"monotonic_budget": {"epochs": 9.0}})


def test_d19_a_results_file_that_gives_the_baseline_s_settings_for_every_arm(tmp_path):
    """The T5 results said "num_epochs 5" and the baseline's rate for a monotonic run of seven epochs."""
    configured = finished_study().study
    stages = contents()
    train_with(stages, "monotonic", configured.budget.model_copy(update={"epochs": 0.4}))
    with pytest.raises(CheckFailed, match=r"all arms had the same budget, monotonic as baseline: .*'epochs': 0\.4"):
        aggregated(tmp_path / "out", written(tmp_path, stages), configured)


def test_d24_an_aggregator_that_reads_keys_which_no_stage_writes():
    """The keys were other ones: every mean over seeds was NaN, without an error."""
    evaluation = finished_study().result("evaluate")

    def ours(_: dict) -> float:
        return results()["models"]["baseline"]["perplexity"]

    def is_what_the_stage_wrote(aggregate) -> bool:
        return aggregate(evaluation) == evaluation["models"]["baseline"]["perplexity"]

    assert is_what_the_stage_wrote(ours)


def test_d24_every_number_of_the_aggregate_is_finite_and_nan_cannot_be_written(tmp_path):
    def numbers(value) -> list[float]:
        if isinstance(value, dict):
            return [number for inner in value.values() for number in numbers(inner)]
        if isinstance(value, list):
            return [number for inner in value for number in numbers(inner)]
        return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []

    found = numbers(results())
    assert len(found) > 50 and all(map(math.isfinite, found))

    (tmp_path / "old.json").write_text(json.dumps({"mean": math.nan}))  # what the old one did
    assert "NaN" in (tmp_path / "old.json").read_text()
    with pytest.raises(ValueError, match="not JSON compliant"):
        durable.write_json(tmp_path / "ours.json", {"mean": math.nan})
    assert not (tmp_path / "ours.json").exists()


def test_d26_a_winner_that_stands_in_the_code():
    """Whichever arm the numbers favour, the words name no winner."""
    found, said = typed(results()), said_of_it().markdown()
    for of_the_tiny_model in worse_than_frequencies(found):
        said = said.replace(of_the_tiny_model, "")
    assert not WINNER.search(said)


def test_d26_one_seed_ranks_nothing():
    text = said_of_it().markdown()
    assert "One seed: differences describe these trainings and rank nothing." in text


def test_d29_a_report_that_lists_what_was_never_run(tmp_path):
    """LAMBADA, HellaSwag and others stood in the documentation with expected accuracies; only losses were computed."""

    def ours() -> tuple[set[str], set[str]]:
        """Every run that a row of the table names, and every run that left a verified marker."""
        _, path = aggregated(tmp_path / "out", written(tmp_path, contents()), finished_study().study)
        tables_with_runs = [
            block
            for block in (path / "table.md").read_text().split("\n\n")
            if block.startswith("| ") and re.search(r"\| run( directory)? +\|$", block.splitlines()[0])
        ]
        rows = [line for block in tables_with_runs for line in block.splitlines()[2:]]
        named = {line.split("|")[-2].strip().rsplit("/", 1)[-1] for line in rows}
        return named, {marker.parent.name for marker in (tmp_path / "runs").rglob("COMPLETE.json")}

    def lists_only_what_was_run(report: Callable[[], tuple[set[str], set[str]]]) -> bool:
        listed, run = report()
        return bool(listed) and listed <= run

    assert lists_only_what_was_run(ours)
