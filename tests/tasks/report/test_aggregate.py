"""The table says what was measured, how sure it is, where it comes from, and what it must not be taken for."""

from __future__ import annotations

import copy
import re
from types import SimpleNamespace

import pytest

from storage import durable
from storage.errors import CheckFailed
from tasks.report import aggregate as report
from tasks.report import sweep
from tasks.stage import StageInput
from tasks.study import AggregateConfig, SweepConfig, UnequalBudgets
from tests.tasks.tiny import Here, finished_study, handles_of, stage_run, tiny_study

ROLES = {
    "text": "setup",
    "base": "base",
    "constrained": "constrain",
    "baseline": "train-baseline",
    "monotonic": "train-monotonic",
    "evaluation": "evaluate",
}
WINNERS = re.compile(r"\b(winner|wins|better|worse|best model|more robust|most robust|outperform\w*)\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def study():
    return finished_study()


@pytest.fixture
def results(study) -> dict:
    return durable.read_json(study.path("aggregate") / "final_results.json")


def inputs_of(study) -> dict[str, StageInput]:
    return {role: study.input(stage) for role, stage in ROLES.items()}


def with_result(given: StageInput, result: dict) -> StageInput:
    """The same finished stage, said to have another result."""
    changed = StageInput(given.run, given.outputs_digest)
    changed.__dict__["result"] = result
    return changed


# ----------------------------------------------------------------------------------------------- study


def test_the_table_on_disk_is_that_of_the_results(study, results):
    assert (study.path("aggregate") / "table.md").read_text() == report.table(results)


def test_every_row_names_the_run_directory_it_came_from(study, results):
    table = report.table(results)
    models, _, arms = (block for block in table.split("\n\n") if block.startswith("| "))
    for line in models.splitlines()[2:] + arms.splitlines()[2:]:
        place = line.split("|")[-2].strip()
        assert (study.root / place / "COMPLETE.json").is_file(), line


def test_the_numbers_are_those_of_the_stages(study, results):
    assert results["models"] == study.result("evaluate")["models"]
    assert results["constraint"] == study.result("train-monotonic")["constraint"]
    for arm in ("baseline", "monotonic"):
        assert results["arms"][arm]["weights_digest"] == study.result(f"train-{arm}")["weights_digest"]
    assert [(row["model"], row["reference"]) for row in results["differences"]] == [
        ("baseline", "base"),
        ("monotonic", "base"),
        ("monotonic", "baseline"),
    ]
    loss = {name: model["loss_nats_per_token"] for name, model in results["models"].items()}
    for row in results["differences"]:
        low, high = row["interval_nats_per_token"]
        assert row["difference_nats_per_token"] == pytest.approx(loss[row["model"]] - loss[row["reference"]])
        assert low <= row["difference_nats_per_token"] <= high


def test_one_seed_and_a_toy_model_are_called_so_and_no_winner_is_named(results):
    table = report.table(results)
    assert "One seed" in table and "rank nothing" in table
    assert "toy size" in table
    assert not WINNERS.search(table)


def test_a_model_of_real_size_is_not_called_a_toy(results):
    results["base"]["parameters"] = 1_414_647_808
    table = report.table(results)
    assert "1,414,647,808 parameters" in table and "toy" not in table


def test_the_table_says_what_was_verified(study, results):
    table = report.table(results)
    assert "4 layers (mlp_both), 2,048 effective weights, all >= 0 after training" in table
    share = study.result("constrain")["share_of_signs_changed"]
    assert f"{share:.1%} of them changed sign" in table


def test_equal_budgets_are_said_to_be_equal(results):
    assert "Both arms had the same budget." in report.table(results)


def test_changed_numerics_are_said_in_bold_with_the_stages(results):
    assert "umerics changed" not in report.table(results)
    results["numerics_changes"] = {"train-baseline": [{"micro_batch_examples": 8}]}
    assert "**Numerics changed between attempts of train-baseline:**" in report.table(results)


def test_changed_numerics_reach_the_table_from_the_stage_that_had_them(study, tmp_path):
    inputs = inputs_of(study)
    result = inputs["monotonic"].result | {"numerics_changes": [{"cpu_threads": 9}]}
    inputs["monotonic"] = with_result(inputs["monotonic"], result)
    text = table_of(study, tmp_path, inputs)
    assert "**Numerics changed between attempts of train-monotonic:**" in text


def table_of(study, folder, inputs, **changed) -> str:
    config = study.study.for_aggregate().model_copy(update=changed)
    run = stage_run(folder)
    run.run = SimpleNamespace(root=study.root)  # the runs are named relative to their own root
    report.aggregate(run, config, **inputs)
    return (run.directory / "table.md").read_text()


# --------------------------------------------------------------------------------------------- budgets


def test_unequal_budgets_stand_in_the_table_with_their_reason(tmp_path):
    shared = tiny_study(tmp_path).budget
    reason = "the constrained arm needs more steps to recover"
    more = {"reason": reason, "monotonic": shared.model_copy(update={"epochs": 0.2}).model_dump()}
    study = tiny_study(tmp_path, unequal_budgets=more)
    handles = handles_of(tmp_path / "runs", study, Here)
    text = (handles["aggregate"].run.path / "table.md").read_text()
    assert f"**The arms had unequal budgets:** {reason}" in text
    assert "same budget" not in text


@pytest.mark.parametrize("key", ["steps", "tokens_trained", "budget"])
def test_arms_that_spent_differently_are_never_called_equal(study, tmp_path, key):
    inputs = inputs_of(study)
    result = copy.deepcopy(inputs["monotonic"].result)
    result["training"][key] = result["training"]["budget"] | {"epochs": 9.0} if key == "budget" else 10**6
    inputs["monotonic"] = with_result(inputs["monotonic"], result)
    with pytest.raises(CheckFailed, match="both arms had the same budget"):
        table_of(study, tmp_path, inputs)


def test_equal_arms_are_never_called_unequal(study, tmp_path):
    said = UnequalBudgets(reason="they differ, it is said", monotonic=study.study.budget)
    with pytest.raises(CheckFailed, match="unequal budgets, as configured"):
        table_of(study, tmp_path, inputs_of(study), unequal_budgets=said)


# -------------------------------------------------------------------------------------------- refusals


def test_two_arms_with_the_same_weights_are_refused(study, tmp_path):
    inputs = inputs_of(study)
    same = inputs["monotonic"].result | {"weights_digest": inputs["baseline"].result["weights_digest"]}
    inputs["monotonic"] = with_result(inputs["monotonic"], same)
    with pytest.raises(CheckFailed, match="different weights"):
        table_of(study, tmp_path, inputs)


@pytest.mark.parametrize("role", list(ROLES))
def test_an_input_that_was_edited_with_its_times_kept_is_refused_by_name(study, tmp_path, role):
    """Sizes and times are not trusted here, unlike when a page is walked."""
    import os

    copied = study.copy(tmp_path / "runs")
    file = copied.path(ROLES[role]) / "result.json"
    before = file.stat()
    data = file.read_bytes()
    digit = next(i for i, byte in enumerate(data) if chr(byte) in "12345")
    with file.open("r+b") as open_file:
        open_file.seek(digit)
        open_file.write(b"6")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CheckFailed, match=rf"outputs of {ROLES[role]} .*result\.json"):
        table_of(copied, tmp_path / "new", inputs_of(copied))


@pytest.mark.parametrize(
    ("role", "path"),
    [
        ("evaluation", ["models"]),
        ("monotonic", ["constraint"]),
        ("monotonic", ["training", "steps"]),
        ("baseline", ["weights_digest"]),
        ("constrained", ["share_of_signs_changed"]),
        ("base", ["trained_check"]),
        ("text", ["splits"]),
    ],
)
def test_a_key_that_is_not_there_is_an_error_and_never_a_gap(study, tmp_path, role, path):
    inputs = inputs_of(study)
    result = copy.deepcopy(inputs[role].result)
    *parents, last = path
    place = result
    for parent in parents:
        place = place[parent]
    del place[last]
    inputs[role] = with_result(inputs[role], result)
    with pytest.raises(KeyError, match=last):
        table_of(study, tmp_path, inputs)


# ----------------------------------------------------------------------------------------------- sweep


@pytest.fixture(scope="module")
def two_seeds(study, tmp_path_factory):
    """The tiny study with another seed beside it: role -> aggregate's handle, as flows.sweep gives them."""
    copied = study.copy(tmp_path_factory.mktemp("sweep") / "runs")
    other = study.study.model_copy(update={"seed": 1337})
    handles = handles_of(copied.root, other, Here)
    assert handles["base"].outcome is None  # shared: only trainings and what follows depend on the seed
    return copied, {"seed_42": copied.input("aggregate"), "seed_1337": handles["aggregate"].as_input()}


def swept(study, folder, roles):
    run = stage_run(folder)
    run.run = SimpleNamespace(root=study.root)
    sweep.aggregate_seeds(run, SweepConfig(study="tiny", evaluation=study.study.evaluation), **roles)
    return durable.read_json(run.directory / "final_results.json"), (run.directory / "table.md").read_text()


def test_two_seeds_give_the_mean_difference_with_its_interval(two_seeds, tmp_path):
    study, roles = two_seeds
    found, table = swept(study, tmp_path, roles)
    differences = [
        result["models"]["monotonic"]["loss_nats_per_token"] - result["models"]["baseline"]["loss_nats_per_token"]
        for result in found["of_seed"].values()
    ]
    told = found["monotonic_minus_baseline_nats_per_token"]
    assert told["mean"] == pytest.approx(sum(differences) / 2)
    half = 12.706204736432095 * abs(differences[0] - differences[1]) / 2  # t(1, 0.975) * s / sqrt(2)
    assert told["interval"] == pytest.approx([told["mean"] - half, told["mean"] + half])
    assert found["seeds"] == [42, 1337]
    low, high = told["interval"]
    assert f"{told['mean']:+.4f} nats per token, 95% interval {low:+.4f} to {high:+.4f}" in table
    assert "over 2 seeds" in table
    assert not WINNERS.search(table)


@pytest.mark.parametrize("arm", ["baseline", "monotonic"])
def test_two_seeds_with_the_same_weights_are_one_training_and_refused(two_seeds, tmp_path, arm, monkeypatch):
    study, roles = two_seeds
    read = durable.read_json
    digest = read(roles["seed_42"].path / "final_results.json")["arms"][arm]["weights_digest"]

    def copied(path):
        value = read(path)
        if path.name == "final_results.json":
            value["arms"][arm]["weights_digest"] = digest
        return value

    monkeypatch.setattr(sweep.durable, "read_json", copied)
    with pytest.raises(CheckFailed, match=rf"every seed of train-{arm} .*seed_42 and seed_1337 have equal"):
        swept(study, tmp_path, roles)


def test_a_seed_s_results_that_were_edited_are_refused(two_seeds, tmp_path):
    study, roles = two_seeds
    copied = study.copy(tmp_path / "runs")
    file = copied.path("aggregate") / "final_results.json"
    file.write_text(file.read_text().replace("tiny", "tinY"))
    moved = {"seed_42": copied.input("aggregate"), "seed_1337": roles["seed_1337"]}
    with pytest.raises(CheckFailed, match=r"final_results\.json was edited"):
        swept(copied, tmp_path / "new", moved)


def test_aggregate_reads_no_setting_that_could_change_what_a_stage_computed():
    assert set(AggregateConfig.model_fields) == {"study", "seed", "configuration", "evaluation", "unequal_budgets"}


def test_arms_on_different_numerics_are_said_in_every_table(results):
    assert "different numerics" not in report.table(results)
    results["numerics"]["monotonic"] = results["numerics"]["monotonic"] | {"micro_batch_examples": 99}
    said = "The arms ran on different numerics"
    assert said in report.table(results) and "micro_batch_examples (" in report.table(results)
    assert said in " ".join(report.cautions(results))


def test_the_table_over_seeds_carries_the_cautions_of_each_seed_and_says_what_seeds_vary(two_seeds, tmp_path):
    study, roles = two_seeds
    found, text = swept(study, tmp_path, roles)
    assert "Both arms had the same budget." in text and "order of the training examples and nothing else" in text
    found["of_seed"]["seed_1337"]["unequal_budgets_reason"] = "a warmer start"
    found["of_seed"]["seed_1337"]["numerics_changes"] = {"train-monotonic": [{}]}
    text = sweep.table(found)
    assert (
        "unequal budgets:** a warmer start" in text and "Numerics changed between attempts of train-monotonic" in text
    )
