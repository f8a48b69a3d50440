"""The last gate, on searches and claims: what follows from the configuration alone is asked, and not only agreement."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.robustness.edited import Stages, transfer_again
from tests.tasks.robustness.test_aggregate import Made
from tests.tasks.robustness.test_gate import ATTACKED, every_row, refused
from tests.tasks.tiny import finished_study


@pytest.mark.parametrize("change", ["forwards", "backwards"])
def test_r8_triggers_that_were_all_searched_for_less_than_configured(tmp_path: Path, change: str):
    """Every model the same, and blind search as much: only the configuration says otherwise."""

    def less(stages: Stages) -> None:
        for model in ATTACKED:
            result = stages[f"uat-{model}"]["result"]
            fewer = {"forwards": (10, 0), "backwards": (2, 1)}[change]
            result["gradient"]["forward_sequences"] -= fewer[0]
            result["gradient"]["backward_sequences"] -= fewer[1]
            result["blind"]["forward_sequences"] -= fewer[0] + 2 * fewer[1]

    refused(tmp_path, less, "uat on base spent what its configuration allows")


def test_r8_flips_that_were_all_searched_for_less_than_configured(tmp_path: Path):
    """R8c in full: the records say it too, and add up."""

    def less(stages: Stages) -> None:
        for model in ATTACKED:
            rows, result = stages[f"hotflip-{model}"]["rows"], stages[f"hotflip-{model}"]["result"]
            for row in rows:
                row |= {"forward_sequences": 1, "backward_sequences": 0, "blind_forward_sequences": 1}
            result |= {
                "forward_sequences": len(rows),
                "backward_sequences": 0,
                "blind_forward_sequences": len(rows),
            }

    refused(tmp_path, less, "hotflip on base spent what its configuration allows")


@pytest.mark.parametrize("search", ["gradient", "blind"])
@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda found: found["restarts"].pop(), "ran to its end"),
        (lambda found: found["curve"].pop(0), "ran to its end"),
        (lambda found: found.update(trigger_ids=[1, 2, 3]), "kept the trigger of its best restart"),
        (lambda found: found.update(search_loss_nats_per_token=99.0), "kept the trigger of its best restart"),
        (lambda found: found["budgets"].update({"1": [1, 2, 3]}), "kept the trigger of its best restart"),
    ],
    ids=["a restart less", "an iteration less", "another trigger", "a higher loss", "another at the end of the budget"],
)
def test_a_trigger_that_is_not_what_its_search_found(
    tmp_path: Path, search: str, change: Callable[[dict[str, Any]], None], match: str
):
    refused(
        tmp_path,
        lambda stages: change(stages["uat-monotonic"]["result"][search]),
        f"the {search} search of uat on monotonic {match}",
    )


@pytest.mark.parametrize("attack", ["uat", "hotflip"])
@pytest.mark.parametrize("what", ["search", "random control"])
def test_r4_what_no_model_reads(tmp_path: Path, attack: str, what: str):
    """D16: the window kept the end of a text, and what stood in front was cut off for every model alike."""

    def cut(row: dict[str, Any]) -> None:
        clean = row["clean_loss_sum_nats"]
        if what == "random control":
            row["control_losses_sum_nats"] = [clean] * len(row["control_losses_sum_nats"])
        else:
            row["loss_sum_nats"] = clean
            row["budget_losses_sum_nats"] = [clean] * len(row["budget_losses_sum_nats"])

    def edit(stages: Stages) -> None:
        every_row(stages, attack, cut)
        if what == "search":  # transfer says the same of every model's own attack
            transfer_again(stages, attack)

    refused(tmp_path, edit, f"the models read what the {what} of {attack} wrote")


def test_one_model_that_reads_nothing_is_told_in_bold_and_not_refused(tmp_path: Path):
    def blinded(stages: Stages) -> None:
        for row in stages["uat-random-signs"]["rows"]:
            clean = row["clean_loss_sum_nats"]
            row |= {"loss_sum_nats": clean, "blind_loss_sum_nats": clean, "budget_losses_sum_nats": [clean] * 3}
        transfer_again(stages, "uat")

    table = Made(tmp_path, blinded).table
    (bold,) = re.findall(
        r"\*\*uat: the gradient search does not beat blind search at equal cost on ([^*]*)\.\*\*", table
    )
    assert "random-signs" in bold


@pytest.mark.parametrize("model", ["unigram", "monotonic", "base@0.5"])
def test_r10_a_model_that_was_not_evaluated(tmp_path: Path, model: str):
    def lost(stages: Stages) -> None:
        evaluated = stages["evaluation"]
        del evaluated["result"]["models"][model]
        evaluated["rows"] = [row for row in evaluated["rows"] if row["model"] != model]

    refused(tmp_path, lost, f"evaluate scored every model of the study: measured not {model}")


@pytest.mark.parametrize("model", ["unigram", "untrained", "constrained-untrained"])
def test_r10_a_reference_that_was_scored_on_half_the_tokens(tmp_path: Path, model: str):
    def half(stages: Stages) -> None:
        for row in stages["evaluation"]["rows"]:
            if row["model"] == model:
                row["tokens_scored"] //= 2

    refused(tmp_path, half, f"evaluate scored {model} on every token of the test split")


def reordered(stages: Stages, change: Callable[[dict[str, Any]], None], *, records_too: bool) -> None:
    """Changes what order says of the monotonic arm."""
    found = stages["order"]["result"]["models"]["monotonic"]
    change(found)
    if records_too:
        (row,) = (row for row in stages["order"]["rows"] if row["model"] == "monotonic")
        row["order"] = json.dumps(found)


def test_an_order_that_its_records_contradict(tmp_path: Path):
    def proved(found: dict[str, Any]) -> None:
        found["certificate"]["certified"] = "yes"

    edit = lambda stages: reordered(stages, proved, records_too=False)  # noqa: E731
    refused(tmp_path, edit, "what order says follows from its records")


@pytest.mark.parametrize("said", [{"tensors_checked": 0}, {"variant": "mlp_in"}])
def test_an_order_of_no_weights_or_of_others(tmp_path: Path, said: dict[str, Any]):
    def empty(found: dict[str, Any]) -> None:
        found["certificate"] |= said

    edit = lambda stages: reordered(stages, empty, records_too=True)  # noqa: E731
    refused(tmp_path, edit, "weights of monotonic were looked at for its order")


def test_an_order_of_fewer_models(tmp_path: Path):
    def fewer(stages: Stages) -> None:
        del stages["order"]["result"]["models"]["random-signs"]
        stages["order"]["rows"] = [row for row in stages["order"]["rows"] if row["model"] != "random-signs"]

    refused(tmp_path, fewer, "order examined every model of the study: measured base, baseline, monotonic")


def test_a_trial_of_an_arm_that_was_not_the_best(tmp_path: Path):
    def worse(stages: Stages) -> None:
        for arm in finished_study().study.arms:
            trained = stages[arm]["result"]["training"]
            loss = trained["best_validation_loss_nats_per_token"]
            lowest = loss - 1 if arm == "monotonic" else loss + 1
            stages[arm]["result"]["trials"] = {f"{trained['budget']['learning_rate']:g}": loss, "0.5": lowest}

    refused(tmp_path, worse, "monotonic kept the best of its trials")
