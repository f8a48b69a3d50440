"""The tables say what was measured, how sure it is, where it comes from, and what it must not be taken for."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import durable
from storage.errors import BadInput, CheckFailed
from tasks.report.numbers import NATS, span
from tasks.robustness.study import AggregateConfig, UnequalBudgets
from tasks.robustness.tables import STAGE_OF, tables
from tasks.robustness.words import attack_cautions, cautions, facts, what_was_studied
from tasks.stage.study import StageConfiguration
from tasks.statistics.effects import attack_effect, paired_effects
from tasks.statistics.losses import summary
from tests.tasks.robustness.synthetic import (
    ATTACKED,
    ROLES,
    aggregated,
    changed,
    contents,
    study,
    typed,
    written,
)
from tests.tasks.tiny import files_of, finished_study

WINNERS = re.compile(
    r"\b(winner|wins?|better|worse|best model|more robust|most robust|robuster|outperform\w*|superior)\b", re.IGNORECASE
)
STUDY = study()
STAGES = contents(STUDY)
Edit = Callable[[dict[str, dict[str, Any]]], None]


class Made:
    """aggregate's result and files."""

    def __init__(self, folder: Path, edit: Edit = lambda stages: None, configured: Any = STUDY) -> None:
        stages = changed(STAGES)
        edit(stages)
        self.inputs = written(folder, stages)
        self.result, self.path = aggregated(folder / "out", self.inputs, configured)
        self.numbers = durable.read_json(self.path / "final_results.json")
        self.table = (self.path / "table.md").read_text()
        self.texts = {
            name: (self.path / name).read_text() for name in ("table.md", "experiment_summary.txt", "report.html")
        }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def numbers(made: Made) -> dict[str, Any]:
    return changed(made.numbers)


def refused(folder: Path, edit: Edit, match: str, configured: Any = STUDY) -> None:
    with pytest.raises(CheckFailed, match=match):
        Made(folder, edit, configured)


def rows_of(table: str, heading: str) -> list[list[str]]:
    """The rows of the first table whose header begins with `heading`."""
    block = next(block for block in table.split("\n\n") if block.startswith("| " + heading))
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in block.splitlines()[2:]]


# ------------------------------------------------------------------------------------------------ fixture


def _keys(value: Any) -> Any:
    """The shape of a result: keys, and for lists the shape of the first."""
    if isinstance(value, dict):
        return {key: _keys(inner) for key, inner in value.items()}
    return [_keys(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else None


@pytest.mark.parametrize("stage", ROLES.values())
def test_the_stages_made_up_here_have_the_keys_of_the_real_ones(stage: str):
    import pyarrow.parquet as pq

    real = finished_study()
    ours, theirs = _keys(STAGES[stage]["result"]), _keys(real.result(stage))
    if stage == "setup":
        ours.pop("packed"), theirs.pop("packed")
    assert ours == theirs
    if "rows" in STAGES[stage]:
        row = pq.read_table(real.path(stage) / "records.parquet").to_pylist()[0]
        assert {key: type(value) for key, value in row.items()} == {
            key: type(value) for key, value in STAGES[stage]["rows"][0].items()
        }


def test_the_real_stages_are_aggregated():
    real = finished_study()
    result = real.result("aggregate")
    for name in ["final_results.json", *result["tables"], *result["figures"], result["report"]]:
        assert (real.path("aggregate") / name).is_file()
    assert not [
        name for name in ("uat", "hotflip") if f"## {name}" not in (real.path("aggregate") / "table.md").read_text()
    ]


# ------------------------------------------------------------------------------------------------ numbers


def test_the_result_names_what_there_is_to_show(made: Made):
    assert made.result.tables == ["table.md"] and made.result.report == "report.html"
    assert made.result.final_results_digest == durable.sha256_json(made.numbers)
    assert [Path(name).stem for name in made.result.figures] == [
        "training-base",
        "training-arms",
        "differences-test",
        "losses-uat",
        "effects-uat",
        "differences-uat",
        "losses-hotflip",
        "effects-hotflip",
        "differences-hotflip",
    ]
    assert all((made.path / name).is_file() for name in made.result.figures)


def test_rerunning_gives_the_same_bytes(made: Made, tmp_path: Path):
    result, path = aggregated(tmp_path, made.inputs, STUDY)
    ours, theirs = files_of(path), files_of(made.path)
    assert result == made.result
    assert {n: d for n, d in ours.items() if not n.startswith("locks")} == {
        n: d for n, d in theirs.items() if not n.startswith("locks")
    }


def test_the_table_on_disk_is_that_of_the_results(made: Made):
    assert made.table == tables(typed(made.numbers))


def test_the_numbers_are_those_of_the_stages(made: Made):
    assert made.numbers["models"] == STAGES["evaluate"]["result"]["models"]
    assert made.numbers["constraint"] == STAGES["train-monotonic"]["result"]["constraint"]
    for arm in ("baseline", "monotonic"):
        assert made.numbers["arms"][arm]["weights_digest"] == STAGES[f"train-{arm}"]["result"]["weights_digest"]
    loss = {name: model["loss_nats_per_token"] for name, model in made.numbers["models"].items()}
    pairs = [("baseline", "base"), ("monotonic", "base"), ("monotonic", "baseline")]
    assert [(row["model"], row["reference"]) for row in made.numbers["differences"]] == pairs
    for row in made.numbers["differences"]:
        low, high = row["interval_nats_per_token"]
        assert row["difference_nats_per_token"] == pytest.approx(loss[row["model"]] - loss[row["reference"]])
        assert low <= row["difference_nats_per_token"] <= high


@pytest.mark.parametrize(("attack", "draws"), [("uat", None), ("hotflip", 5)])
def test_the_effects_are_those_of_the_records(made: Made, attack: str, draws: int | None):
    rows, found = STAGES[attack]["rows"], made.numbers["attacks"][attack]
    for model in ATTACKED:
        assert found["effects"][model] == attack_effect(rows, model, 200, 0.95, draws).as_json()
    pairs = [("baseline", "base"), ("monotonic", "base"), ("monotonic", "baseline")]
    assert found["differences"] == [paired_effects(rows, *pair, 200, 0.95, draws).as_json() for pair in pairs]


def test_the_success_rate_is_counted_from_the_records(made: Made):
    for line in rows_of(made.table, "model     |  clean | success"):
        rows = [row for row in STAGES["hotflip"]["rows"] if row["model"] == line[0]]
        share = sum(row["loss_sum_nats"] / row["clean_loss_sum_nats"] - 1 > 0.15 for row in rows) / 40
        assert line[2] == f"{share:.1%}"


def test_every_rate_and_every_difference_of_rates_has_an_interval_and_its_rule_is_stated(made: Made):
    rows = rows_of(made.table, "model     |  clean | success")
    effects = made.numbers["attacks"]["hotflip"]["effects"]
    for line in rows:
        low, high = effects[line[0]]["success_rate_minus_control"]["interval"]
        assert line[7] == f"{100 * low:+.1f} to {100 * high:+.1f}" and all(" to " in line[place] for place in (3, 5, 7))
    assert "as far as the farther of two: the bootstrap over sources, and the exact one (Clopper and" in made.table


def test_an_interval_without_width_is_no_interval():
    assert span([0.0, 0.0], NATS) == "-" and span([0.0, 0.5], NATS) == "+0.0000 to +0.5000"


def test_a_perplexity_of_a_model_that_diverged_fits_its_column(made: Made, numbers: dict[str, Any]):
    """Seen at a learning rate of 100: 305 digits, the same for both arms, since e^700 is the most that is kept."""
    capped = summary([{"model": "m", "tokens_scored": 1, "loss_sum_nats": loss} for loss in (7e4,)], "m")
    numbers["models"]["baseline"] |= {"perplexity": capped.perplexity}
    numbers["models"]["monotonic"] |= {"perplexity": 1_234_567.0}
    rows = {line[0]: line[1] for line in rows_of(tables(typed(numbers)), "model                 | perplexity")}
    assert rows["baseline"] == "> 1e300" and rows["monotonic"] == "1.23e6"
    assert rows["base"] == f"{numbers['models']['base']['perplexity']:,.2f}"
    assert "1.23e6 (monotonic arm)" in facts(typed(numbers))[0]
    assert "    > 1e300 |" in tables(typed(numbers)), "the column still stands right"


def test_every_name_of_a_model_is_explained_and_the_question_asked(made: Made):
    for name, wrapped in made.texts.items():
        text = " ".join(wrapped.split())
        assert "Does forcing the feed-forward weights of a language model to be non-negative" in text, name
        for model in made.numbers["models"]:
            assert f"{model}: " in text, (name, model)
        assert "untrained: the network with random weights" in text and "Wallace et al. 2019" in text
        assert "universal adversarial trigger" in text and "Ebrahimi et al. 2018" in text


def test_the_text_is_described_with_what_a_source_of_it_is(made: Made, numbers: dict[str, Any]):
    for wrapped in made.texts.values():
        assert "standard library, numpy, pandas, each a document" in " ".join(wrapped.split())
    numbers["configuration"]["text"] = {"source": "files", "text_column": "text"}
    assert "A text file is one document and one source" in tables(typed(numbers))
    numbers["configuration"]["text"] = {"source": "hub", "dataset": "a/b", "revision": "0" * 40}
    assert f"a/b of the Hugging Face hub, revision {'0' * 40}" in tables(typed(numbers))


def test_a_base_that_began_with_the_weights_of_another_run_is_named_as_such_in_every_text(made: Made, tmp_path: Path):
    sentence = f"pretraining of base began with the weights of other/base/{'d' * 12} (model.init_from)"

    def edit(stages: dict[str, Any]) -> None:
        begun = {"study": "other", "stage": "base", "fingerprint": "d" * 64, "outputs": "e" * 64}
        stages["base"]["result"]["init_from"] = begun

    for text in Made(tmp_path, edit).texts.values():
        assert sentence in " ".join(text.replace("**", "").split())
    assert "began with the weights" not in made.table


def test_differences_of_shares_are_in_percentage_points_and_not_percent(made: Made):
    for line in rows_of(made.table, "difference           | relative"):
        assert not [cell for cell in line if "%" in cell]


# ------------------------------------------------------------------------------------------------- tables


def test_the_table_is_narrow_enough_for_a_terminal_of_120_columns(made: Made):
    lines = [line for line in made.table.splitlines() if line.startswith("|")]
    assert len(lines) > 60 and max(map(len, lines)) <= 120


def test_every_row_names_a_run_and_the_last_table_says_where_it_lies(made: Made):
    *blocks, runs = [block for block in made.table.split("\n\n") if block.startswith("| ")]
    places = {line.split("|")[2].strip() for line in runs.splitlines()[2:]}
    root = made.inputs["text"].run.root
    assert len(places) == 8 and all((root / place / "COMPLETE.json").is_file() for place in places)
    names = {place.rsplit("/", 1)[-1] for place in places}
    assert len(names) == 8
    for block in blocks:
        for line in block.splitlines()[2:]:
            assert line.split("|")[-2].strip() in names, line


def test_rows_come_from_the_stage_that_made_the_number(made: Made):
    runs = {stage: place.rsplit("/", 1)[-1] for stage, place in made.numbers["runs"].items()}
    for line in rows_of(made.table, "model                 | perplexity"):
        assert line[-2:] == [runs[STAGE_OF[line[0]]], runs["evaluate"]]  # the loss is evaluate's, whoever's the model
    for line in rows_of(made.table, "arm"):
        assert line[-1] == runs[f"train-{line[0]}"]
    for line in rows_of(made.table, "attack"):
        assert line[-1] == runs[line[0]]


def test_what_the_attacks_cost_stands_in_the_table(made: Made):
    assert [line[:5] for line in rows_of(made.table, "attack")] == [
        [attack, model, forwards, backwards, documents]
        for attack, forwards, backwards, documents in (("uat", "7,200", "240", "60"), ("hotflip", "4,440", "200", "40"))
        for model in ATTACKED
    ]


def test_triggers_stand_in_the_table_with_their_ids_and_harmlessly(made: Made):
    assert r"- trigger of base: " in made.table and "(ids 315 60 47 116 92)" in made.table
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", made.table)
    assert "<script>" not in made.table.replace(r"\<script\>", "")


def test_one_seed_and_a_toy_model_are_called_so_everywhere_and_no_winner_is_named(made: Made):
    for name, wrapped in made.texts.items():
        text = " ".join(wrapped.split())
        assert "One seed" in text and "rank nothing" in text and "toy size" in text, name
        assert not WINNERS.search(text), (name, WINNERS.search(text))


def test_a_model_of_real_size_is_not_called_a_toy(numbers: dict[str, Any]):
    numbers["base"]["parameters"] = 1_414_647_808
    assert "1,414,647,808 parameters" in what_was_studied(typed(numbers)) and "toy" not in tables(typed(numbers))


def test_the_table_says_what_was_verified(made: Made):
    assert "8 layers (mlp_both), 524,288 effective weights, all >= 0 after training (smallest 6.55e-08)" in made.table
    assert "50.0% of them changed sign" in made.table


def test_the_facts_give_both_effects_with_intervals_and_the_clean_loss(made: Made):
    sentences = facts(typed(made.numbers))
    for attack, found in made.numbers["attacks"].items():
        for model, effect in found["effects"].items():
            (one,) = [fact for fact in sentences if fact.startswith(f"{attack} on {model}: ")]
            low, high = effect["increase_nats_per_token"]["interval"]
            assert f"loss {effect['clean_loss_nats_per_token']:.4f} clean" in one
            assert f"{effect['increase_nats_per_token']['value']:+.4f} (interval {low:+.4f} to {high:+.4f})" in one
            assert f"{effect['relative_increase']['value']:+.2%}" in one
            assert f"random control {effect['control_increase_nats_per_token']['value']:+.4f}" in one
        assert [fact for fact in sentences if fact.startswith(f"{attack}, monotonic minus baseline: increase ")]


def test_an_attack_that_does_no_more_than_random_tokens_is_called_so(numbers: dict[str, Any]):
    assert not [sentence for sentence in attack_cautions(typed(numbers)) if "not told apart" in sentence]
    numbers["attacks"]["uat"]["effects"]["monotonic"]["attack_minus_control_nats_per_token"]["interval"] = [-0.1, 0.1]
    assert [
        sentence
        for sentence in attack_cautions(typed(numbers))
        if sentence.startswith("uat is not told apart from random tokens on monot")
    ]


def test_a_model_that_has_forgotten_the_language_is_not_shown_as_one_that_withstands(numbers: dict[str, Any]):
    """Seen on SmolLM2 after ten steps: 18 nats per token, and no attack succeeded."""
    sentence = "On the test split monotonic did worse than a table of token frequencies"
    assert sentence not in tables(typed(numbers)) and not [fact for fact in facts(typed(numbers)) if sentence in fact]
    numbers["models"]["monotonic"] |= {"loss_nats_per_token": numbers["models"]["unigram"]["loss_nats_per_token"]}
    assert f"**{sentence}**" in tables(typed(numbers))
    assert [
        fact for fact in facts(typed(numbers)) if fact.startswith(sentence) and "no sign that it withstands" in fact
    ]


def test_documents_of_one_source_have_no_interval_and_the_tables_say_so(tmp_path: Path):
    def edit(stages: dict[str, Any]) -> None:
        for row in stages["hotflip"]["rows"]:
            row["source"] = "one"

    made = Made(tmp_path, edit)
    assert "none (one source)" in made.table and "nan" not in made.table.lower()
    assert "All documents of hotflip come from one source: its numbers have no interval." in made.table
    assert "hotflip is not told apart" not in made.table


def test_a_base_model_that_was_loaded_has_no_training_curve(tmp_path: Path):
    def edit(stages: dict[str, Any]) -> None:
        stages["base"]["result"] |= {"training": None, "source": "hub"}
        del stages["base"]["metrics"]

    names = Made(tmp_path, edit).result.figures
    assert "figures/training-base.svg" not in names and "figures/training-arms.svg" in names


# ----------------------------------------------------------------------------------- numerics and budgets


def test_equal_budgets_are_called_equal(made: Made):
    assert all("Both arms had the same budget." in wrapped for wrapped in made.texts.values())


def test_changed_numerics_reach_every_text_from_the_stage_that_had_them(made: Made, tmp_path: Path):
    sentence = "Numerics changed between attempts of train-monotonic, uat:"
    assert sentence not in made.table

    def edit(stages: dict[str, Any]) -> None:
        for stage in ("train-monotonic", "uat"):
            stages[stage]["result"]["numerics_changes"] = [{"cpu_threads": 9}]

    new = Made(tmp_path, edit)
    assert f"**{sentence}**" in new.table and all(sentence in " ".join(text.split()) for text in new.texts.values())
    assert not [name for name, text in new.texts.items() if "**" in text and name != "table.md"]


def test_arms_on_different_numerics_are_named_in_every_text(numbers: dict[str, Any]):
    assert "different numerics" not in tables(typed(numbers))
    numbers["numerics"]["monotonic"] = numbers["numerics"]["monotonic"] | {"micro_batch_examples": 99}
    assert "**The arms ran on different numerics**" in tables(typed(numbers))
    assert "micro_batch_examples (16, 99)" in " ".join(cautions(typed(numbers)))


def test_unequal_budgets_stand_in_every_text_with_their_reason(tmp_path: Path):
    reason = "the constrained arm needs more steps to recover"
    unequal = UnequalBudgets(reason=reason, monotonic=STUDY.budget.model_copy(update={"epochs": 0.4}))
    configured = STUDY.model_copy(update={"unequal_budgets": unequal})

    def edit(stages: dict[str, Any]) -> None:
        stages["train-monotonic"]["result"]["training"]["steps"] = 256

    for wrapped in Made(tmp_path, edit, configured).texts.values():
        text = " ".join(wrapped.split())
        assert "The arms had unequal budgets:" in text and reason in text and "same budget." not in text


@pytest.mark.parametrize("key", ["steps", "tokens_trained", "budget"])
def test_arms_that_spent_differently_are_never_called_equal(tmp_path: Path, key: str):
    def edit(stages: dict[str, Any]) -> None:
        training = stages["train-monotonic"]["result"]["training"]
        training[key] = training["budget"] | {"epochs": 9.0} if key == "budget" else 10**6

    refused(tmp_path, edit, "both arms had the same budget")


def test_equal_arms_are_never_called_unequal(tmp_path: Path):
    unequal = UnequalBudgets(reason="they differ on purpose", monotonic=STUDY.budget)
    configured = STUDY.model_copy(update={"unequal_budgets": unequal})
    refused(tmp_path, lambda stages: None, "unequal budgets, as configured", configured)


# ----------------------------------------------------------------------------------------------- refusals


def test_two_arms_with_the_same_weights_are_refused(tmp_path: Path):
    def edit(stages: dict[str, Any]) -> None:
        stages["train-monotonic"]["result"]["weights_digest"] = stages["train-baseline"]["result"]["weights_digest"]

    refused(tmp_path, edit, "different weights")


@pytest.mark.parametrize("attack", ["uat", "hotflip"])
@pytest.mark.parametrize("key", ["forward_sequences", "backward_sequences"])
@pytest.mark.parametrize("model", ["baseline", "monotonic"])
def test_models_that_were_attacked_at_another_cost_are_refused(tmp_path: Path, attack: str, key: str, model: str):
    def edit(stages: dict[str, Any]) -> None:
        stages[attack]["result"]["models"][model][key] += 1

    refused(tmp_path, edit, f"{attack} spent the same on every model: measured {model}")


@pytest.mark.parametrize("attack", ["uat", "hotflip"])
def test_an_attack_with_other_settings_than_the_study_s_is_refused(tmp_path: Path, attack: str):
    def edit(stages: dict[str, Any]) -> None:
        stages[attack]["result"]["attack"]["candidates"] += 1

    refused(tmp_path, edit, f"{attack} attacked as this study is configured")


@pytest.mark.parametrize("attack", ["uat", "hotflip"])
@pytest.mark.parametrize("place", [0, -1])
def test_a_text_that_is_missing_for_one_model_is_refused(tmp_path: Path, attack: str, place: int):
    refused(tmp_path, lambda stages: stages[attack]["rows"].pop(place), f"{attack} attacked every model on the same")


@pytest.mark.parametrize("attack", ["uat", "hotflip"])
def test_a_text_that_is_missing_for_every_model_is_refused(tmp_path: Path, attack: str):
    def edit(stages: dict[str, Any]) -> None:
        gone = stages[attack]["rows"][0]["example_id"]
        stages[attack]["rows"] = [row for row in stages[attack]["rows"] if row["example_id"] != gone]

    refused(tmp_path, edit, f"{attack} attacked every model on the same documents")


@pytest.mark.parametrize("key", ["example_id", "source"])
def test_another_text_for_one_model_is_refused(tmp_path: Path, key: str):
    def edit(stages: dict[str, Any]) -> None:
        stages["hotflip"]["rows"][-1][key] = "another"

    refused(tmp_path, edit, "hotflip attacked every model on the same documents")


def test_a_text_that_stands_in_twice_is_refused(tmp_path: Path):
    def edit(stages: dict[str, Any]) -> None:
        rows = stages["uat"]["rows"]
        ids = sorted({row["example_id"] for row in rows})
        for row in rows:
            row["example_id"] = ids[0] if row["example_id"] == ids[1] else row["example_id"]

    refused(tmp_path, edit, "uat attacked every model on the same documents")


def test_a_model_that_was_not_attacked_is_refused(tmp_path: Path):
    def edit(stages: dict[str, Any]) -> None:
        del stages["uat"]["result"]["models"]["base"]

    refused(tmp_path, edit, "uat attacked the models of this study")


def test_a_trigger_scored_on_other_tokens_for_one_model_is_refused(tmp_path: Path):
    def edit(stages: dict[str, Any]) -> None:
        stages["uat"]["rows"][-1]["tokens_scored"] -= 1

    refused(tmp_path, edit, "uat scored the same tokens for every model")


def test_a_success_that_its_losses_do_not_show_is_refused(tmp_path: Path):
    def edit(stages: dict[str, Any]) -> None:
        row = stages["hotflip"]["rows"][5]
        row["success"] = not row["success"]

    refused(tmp_path, edit, "successes of hotflip follow from the losses in its records")


@pytest.mark.parametrize("count", [-1, 6])
def test_more_successes_of_the_control_than_draws_are_refused(tmp_path: Path, count: int):
    def edit(stages: dict[str, Any]) -> None:
        stages["hotflip"]["rows"][5]["control_successes"] = count

    refused(tmp_path, edit, "successes of hotflip's control are of its draws")


@pytest.mark.parametrize("role", list(ROLES))
def test_an_input_that_was_edited_with_its_times_kept_is_refused_by_name(tmp_path: Path, role: str):
    """Sizes and times are not trusted here, unlike when a page is walked."""
    inputs = written(tmp_path, STAGES)
    file = inputs[role].path / "result.json"
    before = file.stat()
    data = file.read_bytes()
    digit = next(i for i, byte in enumerate(data) if chr(byte) in "12345")
    with file.open("r+b") as open_file:
        open_file.seek(digit)
        open_file.write(b"6")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(CheckFailed, match=rf"outputs of {ROLES[role]} .*result\.json"):
        aggregated(tmp_path / "out", inputs, STUDY)


@pytest.mark.parametrize(
    ("stage", "path"),
    [
        ("evaluate", ["models"]),
        ("train-monotonic", ["constraint"]),
        ("train-monotonic", ["training", "steps"]),
        ("train-baseline", ["weights_digest"]),
        ("constrain", ["share_of_signs_changed"]),
        ("base", ["trained_check"]),
        ("setup", ["splits"]),
        ("setup", ["largest_shared_shingles"]),
        ("uat", ["models", "base", "trigger_ids"]),
        ("uat", ["models", "base", "forward_sequences"]),
        ("hotflip", ["attack"]),
        ("hotflip", ["records_digest"]),
    ],
)
def test_a_field_that_is_not_there_is_refused_by_file_and_name_and_never_a_gap(
    tmp_path: Path, stage: str, path: list[str]
):
    def edit(stages: dict[str, Any]) -> None:
        *parents, last = path
        place = stages[stage]["result"]
        for parent in parents:
            place = place[parent]
        del place[last]

    named = rf"quick/{stage}/\w+/result\.json .*\n  {re.escape('.'.join(path))}: Field required\n"
    with pytest.raises(BadInput, match=named):
        Made(tmp_path, edit)


def test_aggregate_reads_no_setting_that_could_change_what_a_stage_computed():
    own = set(AggregateConfig.model_fields) - set(StageConfiguration.model_fields)
    assert own == {"study", "seed", "configuration", "evaluation", "unequal_budgets"}
