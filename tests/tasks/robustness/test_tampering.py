"""What a second reviewer edited in a finished study, every marker sealed again: each is refused by name.

N1 to N18 are his; beside each stands who refuses it: the audit, which asks `model/` again, or the last gate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from storage import durable
from storage.errors import CheckFailed
from tasks.attacks.losses import summary
from tasks.robustness.transfer import increases_of
from tasks.training.weights import weights_digest
from tests.tasks.resealed import audited_nothing, differs_too_much
from tests.tasks.robustness.edited import Stages, aggregated, as_measured, audited, searched_again, written
from tests.tasks.tiny import finished_study

Row = dict[str, Any]


def refused(
    folder: Path, edit: Callable[[Stages], None], change: Callable[[str, Path], None] = lambda role, path: None
) -> str:
    """What the audit, or else the last gate, says of a study that was edited."""
    stages = as_measured()
    edit(stages)
    inputs, study = written(folder, stages, change), finished_study().study
    with pytest.raises(CheckFailed) as found:
        audited(folder / "audit", inputs, study)
        aggregated(folder / "out", inputs, study)
    return str(found.value)


def nothing(stages: Stages) -> None:
    pass


def test_what_was_not_edited_agrees(tmp_path: Path):
    inputs, study = written(tmp_path, as_measured()), finished_study().study
    found = audited(tmp_path / "audit", inputs, study)
    assert found.as_json() == finished_study().result("audit")
    other = audited(tmp_path / "other", inputs, study.model_copy(update={"seed": 1}))
    assert sum(found.numbers.values()) > 300 and other.numbers == found.numbers
    assert 0 < found.largest_difference < 1e-6 and 0 < other.largest_difference < 1e-6


# ------------------------------------------------------------------------------------------------ N1, N2: model/


def negated(role: str, path: Path) -> None:
    if role == "monotonic":
        file = path / "model" / "model.safetensors"
        names = durable.read_json(path / "result.json")["constraint"]["layers"]
        tensors = load_file(file)
        save_file(tensors | {f"{name}.weight": -tensors[f"{name}.weight"] for name in names}, file, {"format": "pt"})


def negated_and_told(role: str, path: Path) -> None:
    negated(role, path)
    if role == "monotonic":
        told = durable.read_json(path / "result.json") | {"weights_digest": weights_digest(path / "model")}
        durable.write_json(path / "result.json", told)


def another_arm_s(role: str, path: Path) -> None:
    if role == "monotonic":
        theirs = finished_study().path("train-baseline") / "model" / "model.safetensors"
        (path / "model" / "model.safetensors").write_bytes(theirs.read_bytes())


@pytest.mark.parametrize("change", [negated, another_arm_s])
def test_n1_and_n2_weights_that_the_training_did_not_leave(tmp_path: Path, change: Callable[[str, Path], None]):
    assert "model/ of monotonic in" in refused(tmp_path, nothing, change)


def test_n1_negated_weights_whose_digest_was_computed_anew(tmp_path: Path):
    said = refused(tmp_path, nothing, negated_and_told)
    assert "in model/ of monotonic have the signs they may have: measured" in said and "signs non-negative" in said


# ------------------------------------------------------------------------------------- what only forwards show


def of_transfer(stages: Stages, **wanted: str) -> Iterable[Row]:
    return (row for row in stages["transfer"]["rows"] if wanted.items() <= row.items())


def computed_again(stages: Stages) -> None:
    found = increases_of(stages["transfer"]["rows"])
    names = {"uat_on_search": ("uat", "attack-search")} | {n: (n, "attack-evaluation") for n in ("uat", "hotflip")}
    stages["transfer"]["result"] |= {name: found[key] for name, key in names.items()}


def transferred(stages: Stages) -> None:
    """N3: from -.030 to +.038, "differs"."""
    for row in of_transfer(stages, attack="hotflip", found_for="random-signs", model="monotonic"):
        row["loss_sum_nats"] += 0.1 * row["tokens_scored"]
    computed_again(stages)


def alive(stages: Stages) -> None:
    """N4: a dead arm declared alive."""
    live = stages["monotonic"]["result"]["sublayers"]
    live |= {
        "loss_with_means_nats_per_token": live["loss_nats_per_token"] + 2.5,
        "rise_nats_per_token": live["loss_nats_per_token"] + 2.5 - live["loss_nats_per_token"],
    }


def evaluated(stages: Stages) -> None:
    """N7: 10 % better in records and result."""
    found = stages["evaluation"]
    for row in found["rows"]:
        row["loss_sum_nats"] *= 0.9 if row["model"] == "monotonic" else 1
    found["result"]["models"]["monotonic"] = summary(found["rows"], "monotonic").as_json()


def triggered(stages: Stages) -> None:
    """N11: other ids than those that were judged, wherever they stand."""
    found, other = stages["uat-monotonic"]["result"]["gradient"], [5, 6, 7]
    was, found["trigger_ids"] = found["trigger_ids"], other
    found["budgets"] = {share: other if ids == was else ids for share, ids in found["budgets"].items()}
    for restart in found["restarts"]:
        restart["trigger_ids"] = other if restart["trigger_ids"] == was else restart["trigger_ids"]


def flipped(stages: Stages) -> None:
    """N12."""
    for row in stages["hotflip-monotonic"]["rows"]:
        row["replacements"] = [token - 1 for token in row["replacements"]]


def other_uat_shares(stages: Stages) -> None:
    for row in stages["uat-monotonic"]["rows"]:
        row["budget_losses_sum_nats"] = [row["loss_sum_nats"] + 5] * 2 + [row["loss_sum_nats"]]


def other_early_triggers(stages: Stages) -> None:
    stages["uat-monotonic"]["result"]["gradient"]["budgets"]["0.1"] = [5, 6, 7]


def trained_base(stages: Stages) -> None:
    """Better than it is; the ratios follow."""
    check = stages["base"]["result"]["trained_check"]
    check["validation_perplexity"]["unigram"] *= 2
    check["ratio_of_perplexities"]["unigram"] /= 2


def untrained_is_worse(stages: Stages) -> None:
    check = stages["base"]["result"]["trained_check"]
    check["validation_perplexity"]["untrained"] *= 2
    check["ratio_of_perplexities"]["untrained"] /= 2


def better_snapshot(stages: Stages) -> None:
    stages["base"]["result"]["snapshots"]["0.5"] = 0.5


def start_at_no_cost(stages: Stages) -> None:
    stages["start-non-negative-positive-part"]["result"]["validation_perplexity_after"] = 10.0


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (other_uat_shares, "uat, monotonic, document"),
        (other_early_triggers, "uat, monotonic, document"),
        (trained_base, "validation loss of unigram"),
        (untrained_is_worse, "validation loss of untrained"),
        (better_snapshot, "validation loss of base@0.5"),
        (start_at_no_cost, "validation loss of constrained-untrained"),
        (transferred, "transfer of hotflip (gradient search) from random-signs to monotonic on attack-evaluation"),
        (alive, "validation loss of monotonic with its sublayers replaced by their means"),
        (evaluated, "evaluate, monotonic, document"),
        (triggered, "transfer of uat (gradient search) from monotonic to base on attack-search"),
        (flipped, "transfer of hotflip (gradient search) from monotonic to base on attack-evaluation"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_numbers_that_the_models_do_not_give(tmp_path: Path, edit: Callable[[Stages], None], said: str):
    found = refused(tmp_path, edit)
    assert (
        f"{said}" in found
        and "is what the audit computes: measured" in found
        and "give or take 0.0001 nats per token" in found
    )


def another_text(stages: Stages) -> None:
    stages["uat-monotonic"]["result"]["gradient"]["trigger_text"] = " something else"


def comes_back(stages: Stages) -> None:
    found = stages["hotflip-monotonic"]
    for row in found["rows"]:
        row["round_trips"] = not row["round_trips"]
    found["result"]["round_trips"] = sum(row["round_trips"] for row in found["rows"])


def all_zeros(stages: Stages) -> None:
    stages["monotonic"]["result"]["constraint"]["share_of_zeros"] = 0.999


def larger(stages: Stages) -> None:
    stages["base"]["result"]["parameters"] = 10**10


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (another_text, "the text of the trigger of uat on monotonic is that of its ids"),
        (comes_back, "comes back from its text"),
        (all_zeros, "the share of zeros of the constrained weights in model/ of monotonic"),
        (larger, "the parameters of base"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_what_the_audit_reads_beside_losses(tmp_path: Path, edit: Callable[[Stages], None], said: str):
    found = refused(tmp_path, edit)
    assert said in found and "measured" in found and "required" in found


# ------------------------------------------------------------------------ what contradicts a file that is read


def better_than_its_best(stages: Stages) -> None:
    """N5."""
    live = stages["monotonic"]["result"]["sublayers"]
    for name in ("loss_nats_per_token", "loss_with_means_nats_per_token"):
        live[name] -= 1


def best_of_another_list(stages: Stages) -> None:
    """N16."""
    stages["monotonic"]["result"]["training"]["best_validation_loss_nats_per_token"] = 1.0


def best_of_base(stages: Stages) -> None:
    stages["base"]["result"]["training"]["best_validation_loss_nats_per_token"] = 1.0


ARMS = ("baseline", "monotonic", "random-signs")


def trained_for_longer(stages: Stages) -> None:
    """Every arm alike, so that none differs."""
    for arm in ARMS:
        training = stages[arm]["result"]["training"]
        training |= {"steps": 100 * training["steps"], "tokens_trained": 100 * training["tokens_trained"]}


def trained_on_more(stages: Stages) -> None:
    for arm in ARMS:
        stages[arm]["result"]["training"]["tokens_trained"] *= 100


def trained_at_another_rate(stages: Stages) -> None:
    for arm in ARMS:
        stages[arm]["result"]["training"]["budget"]["learning_rate"] = 0.5


def lower_in_base(stages: Stages) -> None:
    training = stages["base"]["result"]["training"]
    training["validations"][0]["validation_loss_nats_per_token"] = 2.0
    training |= {"best_validation_loss_nats_per_token": 2.0, "best_validation_perplexity": math.exp(2)}


def perplexity_of_another_loss(stages: Stages) -> None:
    stages["monotonic"]["result"]["training"]["best_validation_perplexity"] = 3.0


def other_validations(stages: Stages) -> None:
    stages["monotonic"]["result"]["training"]["validations"][0]["validation_loss_nats_per_token"] = 9.0


def other_metrics(stages: Stages) -> None:
    for row in stages["monotonic"]["metrics"]:
        row |= {"validation_loss": 1.0} if "validation_loss" in row else {}


def never_clipped(stages: Stages) -> None:
    stages["monotonic"]["result"]["training"]["gradients"][0]["gradient_steps_clipped_share"] = 0.0


ATTACKED = ("base", "baseline", "monotonic", "random-signs", "base@0.5")


def of_hotflip(stages: Stages) -> Iterable[Row]:
    return (row for model in ATTACKED for row in stages[f"hotflip-{model}"]["rows"])


def converged(stages: Stages) -> None:
    for row in of_hotflip(stages):
        row["budget_losses_sum_nats"] = [row["loss_sum_nats"]] * 3


def not_converged(stages: Stages) -> None:
    for row in of_hotflip(stages):
        row["budget_losses_sum_nats"] = [row["clean_loss_sum_nats"]] * 2 + [row["loss_sum_nats"]]


def more_by_less(stages: Stages) -> None:
    for row in of_hotflip(stages):
        row["budget_losses_sum_nats"] = [row["loss_sum_nats"] + 20] * 2 + [row["loss_sum_nats"]]


def more_by_less_as_searched(stages: Stages) -> None:
    more_by_less(stages)
    for row in of_hotflip(stages):
        row["search_losses_sum_nats"][1:-1] = [row["loss_sum_nats"] + 20] * (len(row["search_losses_sum_nats"]) - 2)


def cheaper_rounds(stages: Stages) -> None:
    for point in stages["hotflip-monotonic"]["result"]["curve"]:
        point["forward_sequences"] //= 2


def another_rank_correlation(stages: Stages) -> None:
    stages["hotflip-monotonic"]["result"]["rank_correlation"] = -0.99


def a_replacement_less(stages: Stages) -> None:
    row = next(row for row in stages["hotflip-monotonic"]["rows"] if row["replacements"])
    row["replacements"] = row["replacements"][:-1]


def falling_curve(stages: Stages) -> None:
    curve = stages["uat-monotonic"]["result"]["gradient"]["curve"]
    curve[0]["loss_nats_per_token"] = curve[1]["loss_nats_per_token"] + 0.1


def dearer_iterations(stages: Stages) -> None:
    for point in stages["uat-monotonic"]["result"]["gradient"]["curve"]:
        point["forward_sequences"] *= 100


def more_documents(stages: Stages) -> None:
    stages["text"]["result"]["splits"]["train"] |= {"documents": 10**6, "characters": 10**9}


def of_test(change: Row) -> Callable[[Stages], None]:
    """In the result, and in no file."""
    return lambda stages: stages["text"]["result"]["splits"]["test"].update(change)


def more_tokens(stages: Stages) -> None:
    stages["text"]["result"]["packed"]["validation"]["tokens"] = 10**8


def ratio_of_another_base(stages: Stages) -> None:
    stages["base"]["result"]["trained_check"]["ratio_of_perplexities"]["unigram"] = 0.01


def not_trained(stages: Stages) -> None:
    check = stages["base"]["result"]["trained_check"]
    check["validation_perplexity"]["unigram"] = 1e-3
    check["ratio_of_perplexities"]["unigram"] = check["validation_perplexity"]["base"] / 1e-3


def asked_for_less(stages: Stages) -> None:
    stages["base"]["result"]["trained_check"]["required_ratio"]["unigram"] = 1000.0


def without_snapshots(stages: Stages) -> None:
    stages["base"]["result"]["snapshots"] = {}


def halved(stages: Stages) -> None:
    """N8: in losses, blind, controls and transfer; what the search saw stays."""
    for row in [*stages["hotflip-monotonic"]["rows"], *of_transfer(stages, attack="hotflip", model="monotonic")]:
        clean = row["clean_loss_sum_nats"]
        for column in row.keys() & {"loss_sum_nats", "blind_loss_sum_nats"}:
            row[column] = clean + (row[column] - clean) / 2
        for column in row.keys() & {"budget_losses_sum_nats", "control_losses_sum_nats"}:
            row[column] = [clean + (loss - clean) / 2 for loss in row[column]]
    computed_again(stages)


def halved_but_for_the_curve(stages: Stages) -> None:
    curve = [dict(point) for point in stages["hotflip-monotonic"]["result"]["curve"]]
    halved(stages)
    searched_again(stages)
    stages["hotflip-monotonic"]["result"]["curve"] = curve


def dearer_than_the_whole(stages: Stages) -> None:
    """N9: the clean loss of the scored part is that of the text + 30."""
    for row in [*stages["hotflip-monotonic"]["rows"], *of_transfer(stages, attack="hotflip", model="monotonic")]:
        row["clean_loss_sum_nats"] = row["text_clean_loss_sum_nats"] + 30
    computed_again(stages)


def below_nothing(stages: Stages) -> None:
    """N10."""
    found = stages["evaluation"]
    next(row for row in found["rows"] if row["model"] == "monotonic")["loss_sum_nats"] = -500.0
    found["result"]["models"]["monotonic"] = summary(found["rows"], "monotonic").as_json()


def audited_a_part(stages: Stages) -> None:
    stages["audit"]["result"]["numbers"]["transfers"] = 0


def allows_more(stages: Stages) -> None:
    stages["audit"]["result"] |= {"largest_difference": 5.0, "tolerance": 10.0}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (audited_nothing, "computed numbers of every kind again: measured []"),
        (audited_a_part, "computed numbers of every kind again: measured ["),
        (differs_too_much, "the largest difference of the audit in"),
        (allows_more, "allowed what it always does: measured 10.0, required 0.0001"),
        (better_than_its_best, "the liveness of monotonic was measured at its best validation loss: measured"),
        (best_of_another_list, "the best validation of monotonic is the lowest of its validations: measured"),
        (best_of_base, "the best validation of base is the lowest of its validations: measured"),
        (trained_for_longer, "the steps of baseline are those in"),
        (trained_on_more, "baseline was trained on the tokens of its steps"),
        (trained_at_another_rate, "baseline was trained with the configured budget"),
        (lower_in_base, "validation 1 in the result of base is that in"),
        (perplexity_of_another_loss, "the best perplexity of monotonic follows from its loss"),
        (other_validations, "validation 1 in the result of monotonic is that in"),
        (other_metrics, "validation 1 in the result of monotonic is that in"),
        (never_clipped, "epoch's gradients 1 in the result of monotonic is that in"),
        (converged, "is what the search of hotflip on base saw: measured"),
        (not_converged, "is what the search of hotflip on base saw: measured"),
        (more_by_less, "is what the search of hotflip on base saw: measured"),
        (more_by_less_as_searched, "hotflip on base kept in no round what lowers the loss of document"),
        (cheaper_rounds, "the curve of hotflip on monotonic after round 0 stands at what was spent"),
        (another_rank_correlation, "the rank correlation of hotflip on monotonic is the median of its records'"),
        (a_replacement_less, "hotflip on monotonic kept a token for each of its positions, document"),
        (falling_curve, "the curve of the gradient search of uat on monotonic never falls"),
        (
            dearer_iterations,
            "the curve of the gradient search of uat on monotonic after iteration 1 stands at what was",
        ),
        (more_documents, "splits in the result of setup is that in"),
        (of_test({"documents": 999}), "splits in the result of setup is that in"),
        (of_test({"digest": "0" * 64}), "splits in the result of setup is that in"),
        (more_tokens, "the packed validation split of setup is that in"),
        (ratio_of_another_base, "the ratios of base follow from its perplexities"),
        (not_trained, "base is trained, beside unigram"),
        (asked_for_less, "base was held against what is configured"),
        (without_snapshots, "base kept a snapshot at each share of its training"),
        (halved, "is what the search of hotflip on monotonic saw: measured"),
        (halved_but_for_the_curve, "the curve of hotflip on monotonic after round"),
        (dearer_than_the_whole, "in hotflip on monotonic the scored part of a text costs no more than the whole"),
        (below_nothing, "no loss of evaluate is below 0: measured loss_sum_nats of monotonic, document"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_the_last_gate_alone_refuses_what_contradicts_another_file(
    tmp_path: Path, edit: Callable[[Stages], None], said: str
):
    stages = as_measured()
    edit(stages)
    with pytest.raises(CheckFailed) as found:
        aggregated(tmp_path / "out", written(tmp_path, stages), finished_study().study)
    assert said in str(found.value) and "required" in str(found.value)
