"""D19, D24, D26: budgets, keys and winners that were asserted instead of measured."""

from __future__ import annotations

import copy
import json
import math
import re

import pytest
from pydantic import ValidationError

from storage import durable
from tasks.report.aggregate import table
from tasks.study import Study
from tests.tasks.tiny import Here, finished_study, handles_of, tiny_study

WINNER = re.compile(r"\b(most robust|more robust|winner|wins|better|outperforms?)\b", re.IGNORECASE)


def results() -> dict:
    return durable.read_json(finished_study().path("aggregate") / "final_results.json")


def test_d19_budgets_that_differ_and_are_called_identical(tmp_path):
    """Baseline 5 epochs at 1e-5, monotonic 10 at 5e-5; scripts and README said IDENTICAL."""
    budgets = {
        "baseline": {"epochs": 5, "learning_rate": 1e-5, "warmup_ratio": 0.10},
        "monotonic": {"epochs": 10, "learning_rate": 5e-5, "warmup_ratio": 0.20},
    }

    def old() -> tuple[bool, str]:
        return budgets["baseline"] == budgets["monotonic"], "Training hyperparameters IDENTICAL to baseline (fairness)"

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
    assert not said_and_done_agree(old())
    assert said_and_done_agree(ours(tiny_study(tmp_path)))
    assert said_and_done_agree(ours(tiny_study(tmp_path, unequal_budgets=unequal)))


def test_d19_arms_cannot_differ_without_a_reason(tmp_path):
    study = tiny_study(tmp_path)
    assert study.for_training("baseline") == study.for_training("monotonic")
    with pytest.raises(ValidationError, match="reason"):
        tiny_study(tmp_path, unequal_budgets={"monotonic": {"epochs": 9.0}})
    with pytest.raises(ValidationError):
        Study.model_validate(study.model_dump() | {"monotonic_budget": {"epochs": 9.0}})


def test_d24_an_aggregator_that_reads_keys_which_no_stage_writes():
    """The keys were other ones: every mean over seeds was NaN, without an error."""
    evaluation = finished_study().result("evaluate")

    def old(result: dict) -> float:
        return result.get("baseline", {}).get("cnn_dailymail", {}).get("rouge1", math.nan)

    def ours(_: dict) -> float:
        return results()["models"]["baseline"]["perplexity"]

    def is_what_the_stage_wrote(aggregate) -> bool:
        return aggregate(evaluation) == evaluation["models"]["baseline"]["perplexity"]

    assert not is_what_the_stage_wrote(old)
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
    def old(found: dict) -> str:
        return "most robust: monotonic_pythia"

    def ours(found: dict) -> str:
        return table(found)

    def exchanged() -> dict:
        found = copy.deepcopy(results())
        models = found["models"]
        models["baseline"], models["monotonic"] = models["monotonic"], models["baseline"]
        for row in found["differences"]:
            row["difference_nats_per_token"] *= -1
            low, high = row["interval_nats_per_token"]
            row["interval_nats_per_token"] = [-high, -low]
        return found

    def names_no_winner_that_the_numbers_do_not(report) -> bool:
        one, other = report(results()), report(exchanged())
        return one != other and not WINNER.search(one) and not WINNER.search(other)

    assert not names_no_winner_that_the_numbers_do_not(old)
    assert names_no_winner_that_the_numbers_do_not(ours)


def test_d26_one_seed_ranks_nothing():
    text = table(results())
    assert "One seed: differences describe these two trainings and rank nothing." in text
