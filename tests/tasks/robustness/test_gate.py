"""The last gate: aggregate recomputes from records and text, and refuses by name what a stage only says of itself.

Every case is sealed again with real markers after it was edited, so that nothing but the gate can refuse it. R3 to R12
are replicas of what the earlier system, or a person in a hurry, would have handed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.errors import CheckFailed
from tasks.robustness.strongest import increases_of
from tests.tasks.robustness.edited import Stages, aggregated, contents, written
from tests.tasks.tiny import finished_study

ATTACKED = ("base", "baseline", "monotonic", "random-signs", "base@0.5")


def refused(folder: Path, edit: Callable[[Stages], None], match: str) -> None:
    stages = contents()
    edit(stages)
    with pytest.raises(CheckFailed, match=match):
        aggregated(folder / "out", written(folder, stages), finished_study().study)


def every_row(stages: Stages, attack: str, change: Callable[[dict[str, Any]], None]) -> None:
    for model in ATTACKED:
        for row in stages[f"{attack}-{model}"]["rows"]:
            change(row)


def test_what_was_not_edited_is_accepted(tmp_path: Path):
    result, folder = aggregated(tmp_path / "out", written(tmp_path, contents()), finished_study().study)
    assert result.report == "report.html" and (folder / "table.md").is_file()


@pytest.mark.parametrize("attack", ["uat", "hotflip"])
def test_r3_tokens_of_the_attacker_that_are_scored_in_every_model(tmp_path: Path, attack: str):
    def more(row: dict[str, Any]) -> None:
        row["tokens_scored"] += 2

    refused(tmp_path, lambda stages: every_row(stages, attack, more), "scored the text's own tokens alone")


def test_r3_positions_that_no_attacker_may_write(tmp_path: Path):
    def elsewhere(stages: Stages) -> None:
        row = stages["hotflip-base"]["rows"][0]
        row["positions"] = [next(place for place in range(99) if place not in row["writable"])]

    refused(tmp_path, elsewhere, "wrote where it may write")


def test_r4_a_trigger_that_is_judged_on_what_it_was_learned_on(tmp_path: Path):
    def learned(stages: Stages) -> None:
        stages["uat-monotonic"]["result"]["split"] = "attack-search"

    refused(tmp_path, learned, "uat on monotonic is judged on attack-evaluation")


@pytest.mark.parametrize("attack", ["uat", "hotflip"])
def test_r4_documents_of_another_split_under_the_right_name(tmp_path: Path, attack: str):
    def renamed(row: dict[str, Any]) -> None:
        row["example_id"] = "f" * 64 if row["example_id"] < "8" else row["example_id"]

    refused(tmp_path, lambda stages: every_row(stages, attack, renamed), "attacked the documents of attack-evaluation")


def test_r5_and_r9_a_loss_that_its_own_records_contradict(tmp_path: Path):
    def better(stages: Stages) -> None:
        stages["evaluation"]["result"]["models"]["monotonic"] |= {"loss_nats_per_token": 1.5, "perplexity": 4.48}

    refused(tmp_path, better, "what evaluate says of monotonic follows from its records")


@pytest.mark.parametrize(("role", "named"), [("evaluation", "evaluate"), ("uat-base", "uat on base")])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_r7_a_loss_that_is_no_number_is_named_with_its_document(tmp_path: Path, role: str, named: str, value: float):
    def broken(stages: Stages) -> None:
        stages[role]["rows"][0]["loss_sum_nats"] = value

    document = contents()[role]["rows"][0]["example_id"]
    refused(tmp_path, broken, rf"every loss of {named} is a finite number: measured .*{document}")


def test_r8_an_arm_with_twice_the_steps(tmp_path: Path):
    def longer(stages: Stages) -> None:
        stages["monotonic"]["result"]["training"]["steps"] *= 2

    refused(tmp_path, longer, "all arms had the same budget, monotonic as baseline")


def test_r8_a_model_that_was_attacked_for_less(tmp_path: Path):
    def cheaper(stages: Stages) -> None:
        stages["uat-monotonic"]["result"]["gradient"]["forward_sequences"] -= 10

    refused(tmp_path, cheaper, "uat")


def test_r8_costs_that_the_records_do_not_add_up_to(tmp_path: Path):
    def counted(stages: Stages) -> None:
        for row in stages["hotflip-base"]["rows"]:
            row["forward_sequences"] = 1

    refused(tmp_path, counted, "forward_sequences of hotflip on base is the sum of its records'")


def test_r10_a_model_that_was_scored_on_half_the_tokens(tmp_path: Path):
    def half(stages: Stages) -> None:
        for row in stages["evaluation"]["rows"]:
            if row["model"] == "constrained-untrained":
                row["tokens_scored"] //= 2

    refused(tmp_path, half, "evaluate scored constrained-untrained on every token of the test split")


def test_r10_documents_that_one_model_lost(tmp_path: Path):
    def lost(stages: Stages) -> None:
        del stages["hotflip-monotonic"]["rows"][0]

    refused(tmp_path, lost, "hotflip on monotonic attacked the documents of attack-evaluation: measured 3 rows")


def test_r11_draws_of_the_control_that_nobody_kept(tmp_path: Path):
    def fewer(stages: Stages) -> None:
        stages["hotflip-base"]["rows"][0]["control_losses_sum_nats"].pop()

    refused(tmp_path, fewer, "every draw of the control of hotflip on base is kept")


def test_r11_a_success_that_its_losses_do_not_show(tmp_path: Path):
    def claimed(stages: Stages) -> None:
        row = stages["hotflip-base"]["rows"][0]
        row["success"] = not row["success"]

    refused(tmp_path, claimed, "successes of hotflip on base follow from the losses")


@pytest.mark.parametrize(
    "said",
    [{"layers_checked": 0, "layers": []}, {"weights_checked": 0}, {"layers": ["one"]}],
    ids=["no layer", "no weight", "layers without name"],
)
def test_r12_a_constraint_that_nobody_looked_at(tmp_path: Path, said: dict[str, Any]):
    def unseen(stages: Stages) -> None:
        stages["monotonic"]["result"]["constraint"] |= said

    refused(tmp_path, unseen, "constrained weights of monotonic were looked at")


@pytest.mark.parametrize("said", [{"variant": "mlp_in"}, {"signs": "random"}])
def test_r12_other_weights_than_the_study_constrains(tmp_path: Path, said: dict[str, Any]):
    def other(stages: Stages) -> None:
        stages["monotonic"]["result"]["constraint"] |= said

    refused(tmp_path, other, "the weights that monotonic constrains are those of the study")


@pytest.mark.parametrize("said", [{"largest_violation": 1e-9}, {"min_weight": -1e-9}])
def test_a_sign_that_was_violated(tmp_path: Path, said: dict[str, Any]):
    def violated(stages: Stages) -> None:
        stages["monotonic"]["result"]["constraint"] |= said

    refused(tmp_path, violated, "the constrained weights of monotonic have the signs they may have")


def test_an_arm_that_was_trained_another_way(tmp_path: Path):
    def softplus(stages: Stages) -> None:
        stages["monotonic"]["result"]["by"] = "softplus"

    refused(tmp_path, softplus, "monotonic was trained as its name says")


def test_a_baseline_that_was_constrained(tmp_path: Path):
    def constrained(stages: Stages) -> None:
        stages["baseline"]["result"]["constraint"] = stages["monotonic"]["result"]["constraint"]

    refused(tmp_path, constrained, "baseline was trained without constraint")


def test_two_arms_with_the_same_weights(tmp_path: Path):
    def copied(stages: Stages) -> None:
        stages["random-signs"]["result"]["weights_digest"] = stages["monotonic"]["result"]["weights_digest"]

    refused(tmp_path, copied, "every arm has weights of its own")


@pytest.mark.parametrize("attack", ["uat", "hotflip"])
def test_an_attack_with_other_settings_than_the_study_s(tmp_path: Path, attack: str):
    def stronger(stages: Stages) -> None:
        stages[f"{attack}-base"]["result"]["attack"]["candidates"] += 1

    refused(tmp_path, stronger, f"{attack} on base attacked as this study is configured")


def test_positions_that_only_one_model_opens_to_the_attacker(tmp_path: Path):
    def moved(stages: Stages) -> None:
        row = stages["hotflip-monotonic"]["rows"][0]
        free = next(place for place in range(99) if place not in row["writable"])
        row["writable"] = sorted([*row["writable"][1:], free])
        row["positions"] = row["writable"][: len(row["positions"])]
        row["blind_positions"], row["blind_replacements"] = [], []

    refused(tmp_path, moved, "hotflip scored the same tokens for every model")


# ------------------------------------------------------------------------- what a reviewer got past the first gate


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda row: row.update(positions=row["writable"], flips=len(row["writable"])), "wrote as much as it may"),
        (lambda row: row.update(flips=0), "the flips of hotflip on base are counted"),
        (
            lambda row: row.update(
                writable=[1000 + place for place in row["writable"]], positions=[], blind_positions=[]
            ),
            "positions open to the attacker are of the text",
        ),
        (lambda row: row.update(writable=list(range(row["text_tokens"] - 1)), tokens_scored=1), "scored at least half"),
        (lambda row: row.update(budget_losses_sum_nats=[row["loss_sum_nats"]]), "kept what it had found at each share"),
    ],
    ids=["more flips than allowed", "flips uncounted", "positions beyond the text", "one token scored", "budgets lost"],
)
def test_flips_that_the_configuration_does_not_allow(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], match: str
):
    refused(tmp_path, lambda stages: every_row(stages, "hotflip", change), match)


def test_a_clean_loss_of_other_tokens(tmp_path: Path):
    def halved(row: dict[str, Any]) -> None:
        row["clean_loss_sum_nats"] /= 2

    refused(
        tmp_path, lambda stages: every_row(stages, "uat", halved), "was compared with the clean loss of the same tokens"
    )


def test_a_blind_search_that_spent_next_to_nothing(tmp_path: Path):
    def idle(stages: Stages) -> None:
        for model in ATTACKED:
            stages[f"uat-{model}"]["result"]["blind"]["forward_sequences"] = 0

    refused(tmp_path, idle, "blind search spent as much as uat on base")


def test_a_trigger_that_is_longer_than_configured(tmp_path: Path):
    def longer(stages: Stages) -> None:
        stages["uat-base"]["result"]["gradient"]["trigger_ids"] *= 9

    refused(tmp_path, longer, "the trigger of uat on base is as long as configured")


@pytest.mark.parametrize("found_for", ["monotonic", "base"])
@pytest.mark.parametrize("kind", ["uat", "uat_on_search", "hotflip"])
def test_a_transfer_that_its_records_contradict(tmp_path: Path, kind: str, found_for: str):
    def claimed(stages: Stages) -> None:
        stages["transfer"]["result"][kind]["gradient"][found_for]["monotonic"] += 0.5

    attack = kind.split("_")[0]
    said = rf"transfer of {attack} \(gradient search\) from {found_for} to monotonic .* follows from the records"
    refused(tmp_path, claimed, said)


def test_a_transfer_that_left_out_a_model(tmp_path: Path):
    def left_out(stages: Stages) -> None:
        del stages["transfer"]["result"]["uat"]["blind"]["random-signs"]

    refused(tmp_path, left_out, "transfer tried uat of every model on every model")


@pytest.mark.parametrize(
    ("column", "value", "match"),
    [
        ("tokens_scored", 1, "scored the same tokens as the attack"),
        ("example_id", "0" * 64, "scored the same tokens as the attack"),
        ("clean_loss_sum_nats", 1.0, "measured what the attack measured"),
        ("text_clean_loss_sum_nats", 99.0, "measured what the attack measured"),
        ("loss_sum_nats", 99.0, "measured what the attack measured"),
        ("loss_sum_nats", math.nan, "every loss of transfer is a finite number"),
        ("search", "of somebody else", "scored the same tokens as the attack"),
    ],
)
@pytest.mark.parametrize("attack", ["uat", "hotflip"])
@pytest.mark.parametrize("search", ["gradient", "blind"])
def test_a_transfer_record_that_is_not_what_the_attack_says(
    tmp_path: Path, attack: str, search: str, column: str, value: Any, match: str
):
    def other(stages: Stages) -> None:
        for row in stages["transfer"]["rows"]:
            wanted = (attack, "attack-evaluation", search, "monotonic", "monotonic")
            if tuple(row[name] for name in ("attack", "split", "search", "found_for", "model")) == wanted:
                row[column] = value
                break

    refused(tmp_path, other, match)


def test_an_evaluation_of_another_split(tmp_path: Path):
    def renamed(stages: Stages) -> None:
        stages["evaluation"]["result"]["split"] = "validation"

    refused(tmp_path, renamed, "evaluate scored the test split")


def test_an_evaluation_with_records_of_a_stranger(tmp_path: Path):
    def more(stages: Stages) -> None:
        rows = stages["evaluation"]["rows"]
        rows.append({**rows[0], "model": "an arm of my own"})

    refused(tmp_path, more, "evaluate's records are of its models")


def test_a_search_without_its_curve(tmp_path: Path):
    def lost(stages: Stages) -> None:
        stages["uat-base"]["result"]["gradient"]["curve"] = []

    refused(tmp_path, lost, r"the gradient search of uat on base ran to its end, .*: measured .?\(2, 0")


def test_r8_one_model_that_was_searched_for_longer(tmp_path: Path):
    def longer(stages: Stages) -> None:
        for search in ("gradient", "blind"):
            stages["uat-monotonic"]["result"][search]["forward_sequences"] += 6

    refused(tmp_path, longer, "uat spent the same on every model")


def rows_of_transfer(stages: Stages, attack: str, split: str) -> list[dict[str, Any]]:
    return [row for row in stages["transfer"]["rows"] if (row["attack"], row["split"]) == (attack, split)]


def computed_again(stages: Stages) -> None:
    """The matrices of transfer say what its records say."""
    found = increases_of(stages["transfer"]["rows"])
    stages["transfer"]["result"] |= {
        "uat_on_search": found["uat", "attack-search"],
        "uat": found["uat", "attack-evaluation"],
        "hotflip": found["hotflip", "attack-evaluation"],
    }


def test_a_trigger_that_is_made_to_look_weak_where_the_strongest_is_chosen(tmp_path: Path):
    def weak(stages: Stages) -> None:
        for row in rows_of_transfer(stages, "uat", "attack-search"):
            if row["model"] == "monotonic" == row["found_for"]:
                row["loss_sum_nats"] -= 0.5 * row["tokens_scored"]
        computed_again(stages)

    refused(tmp_path, weak, "the trigger of the gradient search on monotonic does on attack-search what it saw")


def test_clean_losses_that_differ_from_trigger_to_trigger(tmp_path: Path):
    def moved(stages: Stages) -> None:
        for row in rows_of_transfer(stages, "uat", "attack-search"):
            if (row["model"], row["found_for"], row["search"]) == ("monotonic", "base", "blind"):
                for column in ("clean_loss_sum_nats", "text_clean_loss_sum_nats"):
                    row[column] += 0.5 * row["tokens_scored"]
        computed_again(stages)

    refused(tmp_path, moved, "from base to monotonic on attack-search compares with one clean loss of each text")


@pytest.mark.parametrize("search", ["gradient", "blind"])
@pytest.mark.parametrize("attack", ["uat", "hotflip"])
def test_r4_what_was_found_for_a_model_and_never_written_for_the_others(tmp_path: Path, attack: str, search: str):
    def left_out(stages: Stages) -> None:
        for row in rows_of_transfer(stages, attack, "attack-evaluation"):
            if (row["search"], row["found_for"]) == (search, "base") and row["model"] != "base":
                row["loss_sum_nats"] = row["clean_loss_sum_nats"]
        computed_again(stages)

    refused(tmp_path, left_out, rf"other models read what {attack} \({search} search\) on base wrote")


@pytest.mark.parametrize("change", ["lacks", "loss on search", "clean loss"])
def test_what_a_restart_found_and_did_not_keep_is_tried_as_what_it_kept(tmp_path: Path, change: str):
    def changed(stages: Stages) -> None:
        rows = stages["transfer"]["rows"]
        split = "attack-search" if change == "loss on search" else "attack-evaluation"
        (name,) = {row["attack"] for row in rows if row["found_for"] == "monotonic" and row["search"] == "gradient"} - {
            "uat",
            "hotflip",
        }
        of_restart = [
            row
            for row in rows
            if (row["attack"], row["split"], row["search"]) == (name, split, "gradient")
            and row["found_for"] == row["model"] == "monotonic"
        ]
        if change == "lacks":
            rows.remove(of_restart[0])
        for row in of_restart:
            if change == "clean loss":  # a scored part that costs more than the whole is refused already
                row["clean_loss_sum_nats"] -= 0.1 * row["tokens_scored"]
            else:
                row["loss_sum_nats"] += 0.5 * row["tokens_scored"]

    refused(
        tmp_path, changed, r"transfer of uat, restart \d \(gradient search\) from monotonic to monotonic on attack-"
    )


def test_a_transfer_of_something_else(tmp_path: Path):
    def more(stages: Stages) -> None:
        rows = stages["transfer"]["rows"]
        rows.append({**rows[0], "found_for": "an arm of my own"})

    refused(tmp_path, more, "transfer tried the attacks of the study")


def test_layers_of_another_arm(tmp_path: Path):
    def renamed(stages: Stages) -> None:
        found = stages["random-signs"]["result"]["constraint"]
        found["layers"] = [f"{name}.other" for name in found["layers"]]

    refused(tmp_path, renamed, "all arms have the same constrained layers")


def test_a_rise_that_its_own_losses_contradict(tmp_path: Path):
    def risen(stages: Stages) -> None:
        stages["monotonic"]["result"]["sublayers"]["rise_nats_per_token"] = 3.0

    refused(tmp_path, risen, "the rise of monotonic follows from its two losses")
