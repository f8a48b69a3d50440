"""What is wrong with a direction study is said before anything runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deployments.dag.walk import Handle, Walk
from deployments.functions import Stage
from flows import icecube
from flows.command import settings
from storage.errors import BadInput
from tasks.icecube.study import Generated, Study
from tests.tasks.icecube.tiny import PAGE, smoke

FILES = "events={source: files, folder: /data, train: {first_batch: 1, last_batch: 3}, validation: %s}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (FILES % "{first_batch: 3, last_batch: 4}", "train and validation share 1 files, the first batch_3"),
        (FILES % "{first_batch: 5, last_batch: 4}", "last_batch 4 comes before first_batch 5"),
        ("events.train_events=120", "train_events 120 is no multiple of events_per_batch 50"),
        ("network.width=17", "width 17 is no multiple of heads 2"),
        ("rates.seeds=[1, 2]", "at least 3 items"),
        ("rates.seeds=[1, 1, 2]", "seeds has 1 twice: give each once"),
        ("rates.rates=[0.001, 0.001]", "rates has 0.001 twice: give each once"),
        ("rates.rates=[-0.001]", "rates.rates.0: must be greater than 0 (it is -0.001"),
        ("rates.probe_events=61", "rates.probe_events 61 is more than the events of validation, 60: lower it"),
        ("overfit.events=201", "overfit.events 201 is more than the events of train, 200"),
        ("trial_seeds=[3, 3]", "trial_seeds has 3 twice: give each once"),
        ("trial_seeds=[-1]", "trial_seeds.0"),
        (
            "events={source: files, folder: /data, train: {first_batch: 1, last_batch: 3},"
            " validation: {first_batch: 4, last_batch: 4, max_events: 7}}",
            "rates.probe_events 40 is more than the events of validation, 7",
        ),
        ("trials=[{name: one}, {name: one, dropout: 0.1}]", "trials has one twice: give each a name of its own"),
        ("trials=[{name: one}, {name: two, learning_rate: 0.001}]", "the trials one and two are the same training"),
        ("trials=[{name: one, batch_norm: true}, {name: two}]", "micro_batch_examples 20 below"),
        ("trials=[{name: one, learning_rte: 1}]", "learning_rte"),
    ],
)
def test_a_wrong_study_names_the_key(change: str, said: str):
    with pytest.raises(BadInput) as error:
        smoke(change, *(["trial_budget.effective_batch_examples=40"] if "below" in said else []))
    assert said in str(error.value)


def test_events_of_another_source_are_wanted_whole():
    with pytest.raises(BadInput) as error:
        smoke("events.source=files")
    assert "events.train_events: a key of another events.source" in str(error.value)
    assert "--set 'events={folder: ..., source: ..., train: ..., validation: ...}'" in str(error.value)


@pytest.mark.parametrize(
    ("change", "again"),
    [
        ("max_dead_share=0.5", {"icecube-report"}),
        ("rates.min_gain_degrees=0.002", {"icecube-train", "icecube-audit", "icecube-report"}),
        ("rates.max_gradient_norm=50", {"icecube-train", "icecube-audit", "icecube-report"}),
        ("rates.steps=9", {"icecube-rates", "icecube-train", "icecube-audit", "icecube-report"}),
        (
            "budget.weight_decay=0.5",
            {"icecube-rates", "icecube-overfit", "icecube-train", "icecube-audit", "icecube-report"},
        ),
        ("dropout=0.25", {"icecube-rates", "icecube-train", "icecube-audit", "icecube-report"}),
    ],
)
def test_only_what_computes_with_a_key_runs_again(tmp_path: Path, change: str, again: set[str]):
    def fingerprints(*changes: str) -> dict[str, str]:
        walk = Walk(tmp_path, "one", smoke().execution)
        icecube.page(smoke("name=one", "take_recommended_rate=true", *changes), walk)
        return {handle.label: handle.run.fingerprint for handle in walk.handles}

    before, after = fingerprints(), fingerprints(change)
    assert {label.partition(" ")[0] for label in before if before[label] != after[label]} == again


def test_a_training_that_takes_no_recommendation_does_not_wait_for_the_table(tmp_path: Path):
    def train(*changes: str) -> Handle:
        walk = Walk(tmp_path, "one", smoke().execution)
        icecube.page(smoke("name=one", *changes), walk)
        return next(handle for handle in walk.handles if handle.label == "icecube-train")

    assert "rates" not in train().inputs and "rates" in train("take_recommended_rate=true").inputs
    assert train("rates.steps=9").run.fingerprint == train().run.fingerprint


def called(stage: Stage, study: Study) -> dict[str, Any]:
    """Cell -> configuration of the calls of a stage."""
    calls = PAGE.walk(study, Walk("/nonexistent", "one"))
    return {call.config.cell: call.config for call in calls if call.stage is stage}


def test_a_recommendation_is_made_with_the_budget_of_the_training_that_takes_it():
    study = smoke("budget.effective_batch_examples=10", "budget.max_gradient_norm=0.25", "dropout=0.25")
    raw, normalised = called(icecube.RATES, study).values()
    assert (normalised.budget.effective_batch_examples, normalised.budget.max_gradient_norm) == (10, 0.25)
    assert (normalised.dropout, raw.dropout, raw.budget.effective_batch_examples) == (0.25, 0.0, 20)


@pytest.mark.parametrize("name", ["quick", "icecube"])
def test_every_suspicion_of_the_recorded_study_is_a_trial_with_its_one_change(name: str):
    study = settings.read_study(PAGE, name, [], None)
    found = {trial.name: trial for trial in study.trials}
    rate = study.trial_budget.learning_rate
    bundles = ("config-fixed", "all-fixes")
    assert set(found) == {
        *("as-found", "learning-rate", "dropout", "shuffle", "normalise", "batch-norm", "warm-up"),
        *bundles,
    }
    plain = found["as-found"].model_dump() | {"name": ""}
    assert plain == {
        "name": "", "inputs": "raw", "batch_norm": False, "dropout": 0.0, "shuffle": False, "learning_rate": None,
        "warmup_ratio": None,
    }  # fmt: skip
    for trial in study.trials:
        changed = {key for key, value in trial.model_dump().items() if key != "name" and value != plain[key]}
        expected = {"as-found": 0, "config-fixed": 2, "all-fixes": 4}.get(trial.name, 1)
        assert len(changed) == expected and {*study.changes_of(trial)} == changed, trial.name
    assert found["learning-rate"].learning_rate < rate


def test_what_a_trial_gives_reaches_its_stage():
    study = settings.read_study(PAGE, "quick", [], None)
    configs = called(icecube.TRIAL, study)
    assert len(configs) == 9 * 3 and {config.seed for config in configs.values()} == {1, 2, 3}
    for trial in study.trials:
        for seed in study.trial_seeds:
            config = configs[f"{trial.name}, seed {seed}"]
            assert config.trained == trial.trained
            changed = {
                name: value for name in ("learning_rate", "warmup_ratio") if (value := getattr(trial, name)) is not None
            }
            assert config.budget == study.trial_budget.model_copy(update=changed)
    assert configs["warm-up, seed 1"].budget.warmup_ratio == 0.1


def test_a_sweep_shows_the_numbers_that_the_page_names():
    swept = replace(PAGE, over={"seed": [1, 2]}).walk(smoke("name=one"), Walk(Path("/nonexistent"), "one"))[-1]
    assert swept.stage.name == "sweep" and swept.config.metrics == icecube.METRICS_OF_A_SWEEP


def test_generated_splits_have_files_of_their_own():
    events = Generated(train_events=100, validation_events=30, events_per_batch=20)
    assert (events.batches("train"), events.batches("validation")) == ([1, 2, 3, 4, 5], [6, 7])
