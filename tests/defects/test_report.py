"""D12, D13, D15, D19, D24, D26, D29: numbers that were not what the report called them."""

from __future__ import annotations

import copy
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
from tasks.robustness.study import Study, UnequalBudgets
from tasks.robustness.tables import tables
from tasks.robustness.words import facts
from tasks.statistics.effects import attack_effect
from tasks.statistics.losses import summary
from tests.tasks.robustness.synthetic import aggregated, contents, study, typed, written
from tests.tasks.tiny import Here, finished_study, handles_of, tiny_study

WINNER = re.compile(r"\b(most robust|more robust|winner|wins|better|worse|outperforms?)\b", re.IGNORECASE)
Stages = dict[str, dict[str, Any]]


def results() -> dict:
    return durable.read_json(finished_study().path("aggregate") / "final_results.json")


def report_of(folder: Path, edit: Callable[[Stages], None], configured: Study | None = None) -> tuple[dict, str]:
    """final_results.json and table.md of a study with made-up numbers, changed by `edit`."""
    configured = configured or study()
    stages = contents(configured)
    edit(stages)
    _, path = aggregated(folder / "out", written(folder, stages), configured)
    return durable.read_json(path / "final_results.json"), (path / "table.md").read_text()


def test_d12_texts_that_one_model_lost_to_memory_and_rates_of_the_rest(tmp_path):
    """A batch that did not fit was halved or dropped, and HotFlip texts that did not fit left the rate."""

    def lost(row: dict) -> bool:
        return row["model"] == "monotonic" and row["success"]  # say that the texts that did not fit were those

    def ours(rows: list[dict]) -> bool:
        def edit(stages: Stages) -> None:
            stages["hotflip"]["rows"] = [row for row in rows if not lost(row)]

        try:
            report_of(tmp_path, edit)
        except CheckFailed as refusal:
            assert "hotflip attacked every model on the same documents" in str(refusal)
            return False
        return True

    rows = contents(study())["hotflip"]["rows"]
    assert sum(lost(row) for row in rows) > 3
    assert not ours(rows)


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
            "control_tokens_scored": n - 1,
            "control_loss_sum_nats": (n - 1) * mean,
            "control_clean_loss_sum_nats": (n - 1) * mean,
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
    clean, rise = {"base": 1.90, "baseline": 1.90, "monotonic": 3.58}, 0.40

    def edit(stages: Stages) -> None:
        for row in stages["hotflip"]["rows"]:
            own = clean[row["model"]]
            row["clean_loss_sum_nats"] = row["tokens_scored"] * own
            row["text_clean_loss_sum_nats"] = row["text_tokens"] * own
            row["loss_sum_nats"] = row["tokens_scored"] * (own + rise)
            row["success"] = rise / own > 0.15

    def ours() -> str:
        return report_of(tmp_path, edit)[1]

    def shows_that_the_attack_did_the_same_to_both(said: str) -> bool:
        numbers = [
            [cell.strip() for cell in line.split("|")[1:-1]]
            for line in said[said.find("## hotflip") :].splitlines()
            if line.startswith("| ")
        ]
        effects = {line[0]: line[1:4] for line in numbers if line[0] in clean and len(line) == 8}
        successes = {line[0]: line[1] for line in numbers if line[0] in clean and line[2:3] and "%" in line[2]}
        between = [line[1] for line in numbers if line[0] == "monotonic - baseline"]
        return (
            [effects.get(model) for model in ("baseline", "monotonic")] != [None, None]
            and successes == {model: f"{own:.4f}" for model, own in clean.items()}  # the clean loss beside the rate
            and between[:1] == ["+0.0000"]
        )

    assert shows_that_the_attack_did_the_same_to_both(ours())


def test_d15_no_text_gives_a_relative_effect_without_the_absolute_one_and_the_clean_loss(tmp_path):
    found, _ = report_of(tmp_path, lambda stages: None)
    said = [fact for fact in facts(typed(found)) if "%" in fact and (" on " in fact or "minus" in fact)]
    assert len([fact for fact in said if "clean" in fact and "nats per token" in fact]) == 6
    assert all("nats per token" in fact for fact in said)


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

    unequal = {
        "reason": "the constrained arm is given more to recover",
        "monotonic": {"epochs": 0.05, "effective_batch_examples": 16, "learning_rate": 5e-3},
    }
    assert said_and_done_agree(ours(tiny_study(tmp_path)))
    assert said_and_done_agree(ours(tiny_study(tmp_path, unequal_budgets=unequal)))


def test_d19_arms_cannot_differ_without_a_reason(tmp_path):
    study = tiny_study(tmp_path)
    assert study.for_training("baseline") == study.for_training("monotonic")
    with pytest.raises(ValidationError, match="reason"):
        tiny_study(tmp_path, unequal_budgets={"monotonic": {"epochs": 9.0}})
    with pytest.raises(ValidationError):
        Study.model_validate(study.model_dump() | {"monotonic_budget": {"epochs": 9.0}})


def test_d19_a_results_file_that_gives_the_baseline_s_settings_for_both_arms(tmp_path):
    """The T5 results said "num_epochs 5" and the baseline's rate for a monotonic run of seven epochs."""
    configured = study()
    more = configured.budget.model_copy(update={"epochs": 0.4})
    configured = configured.model_copy(
        update={"unequal_budgets": UnequalBudgets(reason="time to recover", monotonic=more)}
    )

    def edit(stages: Stages) -> None:
        stages["train-monotonic"]["result"]["training"] |= {"budget": more.model_dump(mode="json"), "steps": 256}

    def ours() -> dict[str, float]:
        found, _ = report_of(tmp_path, edit, configured)
        return {arm: spent["budget"]["epochs"] for arm, spent in found["arms"].items()}

    def is_what_each_arm_spent(reported: Callable[[], dict[str, float]]) -> bool:
        return reported() == {"baseline": 0.2, "monotonic": 0.4}

    assert is_what_each_arm_spent(ours)


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


def test_d26_a_winner_that_stands_in_the_code(tmp_path):
    as_measured, _ = report_of(tmp_path, lambda stages: None)

    def ours(found: dict) -> str:
        return tables(typed(found)) + "\n".join(facts(typed(found)))

    def exchanged() -> dict:
        """The same study in which the arms had each other's numbers."""
        found = copy.deepcopy(as_measured)
        attacks = found["attacks"].values()
        for of_arm in (found["models"], *(attack["effects"] for attack in attacks)):
            of_arm["baseline"], of_arm["monotonic"] = of_arm["monotonic"], of_arm["baseline"]
        for row in found["differences"]:
            row["difference_nats_per_token"] *= -1
            row["interval_nats_per_token"] = [-bound for bound in reversed(row["interval_nats_per_token"])]
        for difference in (row for attack in attacks for row in attack["differences"]):
            for estimate in (value for value in difference.values() if isinstance(value, dict)):
                estimate["value"] *= -1
                estimate["interval"] = [-bound for bound in reversed(estimate["interval"])]
        return found

    def words(said: str) -> str:
        """What is left of a report without its numbers."""
        return re.sub(r"[-+]?[\d.,]+%?| +|-+", " ", said)

    def names_no_winner_that_the_numbers_do_not(report) -> bool:
        one, other = report(as_measured), report(exchanged())
        return one != other and words(one).split() == words(other).split() and not WINNER.search(one)

    assert names_no_winner_that_the_numbers_do_not(ours)


def test_d26_one_seed_ranks_nothing():
    text = tables(typed(results()))
    assert "One seed: differences describe these two trainings and rank nothing." in text


def test_d29_a_report_that_lists_what_was_never_run(tmp_path):
    """LAMBADA, HellaSwag and others stood in the documentation with expected accuracies; only losses were computed."""

    def ours() -> tuple[set[str], set[str]]:
        """Every run that a row of the table names, and every run that left a verified marker."""
        configured = study()
        inputs = written(tmp_path, contents(configured))
        _, path = aggregated(tmp_path / "out", inputs, configured)
        rows = [line for line in (path / "table.md").read_text().splitlines() if line.startswith("| ")]
        last = [line.split("|")[-2].strip().rsplit("/", 1)[-1] for line in rows]
        named = {cell for cell in last if cell not in ("run", "run directory") and set(cell) - set("-:")}
        return named, {marker.parent.name for marker in (tmp_path / "runs").rglob("COMPLETE.json")}

    def lists_only_what_was_run(report: Callable[[], tuple[set[str], set[str]]]) -> bool:
        listed, run = report()
        return bool(listed) and listed <= run

    assert lists_only_what_was_run(ours)
