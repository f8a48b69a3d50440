"""What a third reviewer edited in a finished study, every marker sealed again: each is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage import durable
from tests.tasks.icecube.tiny import SMOKE
from tests.tasks.resealed import Change, Stages, asked_again, audited_nothing, differs_too_much, nothing, refused


def trials(stages: Stages) -> Iterator[dict[str, Any]]:
    return (stage["result"] for stage in stages.values() if "ended" in stage["result"])


# ------------------------------------------------------------------------------- the events and their inputs


def more_events(stages: Stages) -> None:
    stages["events"]["result"]["train"]["events"] = 10**8


def batches_overlap(stages: Stages) -> None:
    found = stages["events"]["result"]
    found["validation"]["batches"] = found["train"]["batches"]


def columns(stages: Stages) -> None:
    for column in stages["look"]["result"]["columns"]:
        column |= {"minimum": 0.0, "maximum": 1.0}


def ranges(stages: Stages) -> None:
    found = stages["look"]["result"]
    found["normalised"] = {name: [-1.0, 1.0] for name in found["normalised"]}


def digest_of_the_normaliser(stages: Stages) -> None:
    for role in ("look", "trained"):
        stages[role]["result"]["normaliser_digest"] = "0" * 64


def looked_at_fewer(stages: Stages) -> None:
    stages["look"]["result"]["events"] = 1


def overfit_failed(stages: Stages) -> None:
    stages["overfit"]["result"]["fit"]["after"] = 89.0


def overfit_asked_less(stages: Stages) -> None:
    stages["overfit"]["result"] |= {"required_degrees": 90.0}
    stages["overfit"]["result"]["fit"]["after"] = 89.0


# ------------------------------------------------------------------------------------------------ the trials


def healed(stages: Stages) -> None:
    for found in trials(stages):
        steps = found["steps_of_budget"]
        found |= {"ended": "finished", "step": steps, "validation_angle_degrees": 20.0}
        found["validations"] = [[float(steps), 20.0]]


def not_healed(stages: Stages) -> None:
    for found in trials(stages):
        found["ended"] = "not_learning" if found["ended"] == "finished" else "finished"


def rate(stages: Stages) -> None:
    for found in trials(stages):
        found["learning_rate"] = 123.0


def dropout(stages: Stages) -> None:
    for found in trials(stages):
        found["trained"]["dropout"] = 0.7


def longer(stages: Stages) -> None:
    for found in trials(stages):
        found["steps_of_budget"] = 10**6


def ended_elsewhere(stages: Stages) -> None:
    for found in trials(stages):
        found["step"] = 1


def norms(stages: Stages) -> None:
    for found in trials(stages):
        found["gradient_norm_max"] *= 1e9


# ---------------------------------------------------------------------------------------------- the training


def training(stages: Stages) -> dict[str, Any]:
    return stages["trained"]["result"]["training"]


def validation(stages: Stages) -> None:
    training(stages)["validations"][0]["median_angle_degrees"] = 10.0


def best_step(stages: Stages) -> None:
    training(stages)["best_step"] = 999


def best_angle(stages: Stages) -> None:
    training(stages)["best_angle_degrees"] = 5.0


def clipped(stages: Stages) -> None:
    training(stages)["gradients"][0]["gradient_steps_clipped_share"] = 0.0


def rate_of_training(stages: Stages) -> None:
    stages["trained"]["result"]["learning_rate"] = 7.0


def warm_up(stages: Stages) -> None:
    training(stages)["budget"]["warmup_ratio"] = 0.5


def parameters(stages: Stages) -> None:
    stages["trained"]["result"]["parameters"] = 10**9


def angles_again(stages: Stages) -> None:
    angles = np.array([row["angle_degrees"] for row in stages["trained"]["rows"]])
    stages["trained"]["result"] |= {"mean_degrees": float(angles.mean()), "median_degrees": float(np.median(angles))}


def worst_events_gone(stages: Stages) -> None:
    rows = stages["trained"]["rows"]
    rows.remove(max(rows, key=lambda row: row["angle_degrees"]))
    angles_again(stages)


def best_event_repeated(stages: Stages) -> None:
    rows = stages["trained"]["rows"]
    rows += [dict(min(rows, key=lambda row: row["angle_degrees"]))] * 200
    angles_again(stages)


def other_events(stages: Stages) -> None:
    for row in stages["trained"]["rows"]:
        row["event_id"] += 10**6


def median(stages: Stages) -> None:
    stages["trained"]["result"]["median_degrees"] += 1e-4


def digest_of_the_records(stages: Stages) -> None:
    stages["trained"]["result"]["records_digest"] = "0" * 64


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (audited_nothing, "computed numbers of every kind again: measured []"),
        (differs_too_much, "the largest difference of the audit in"),
        (more_events, "the events of train are those of the records of"),
        (batches_overlap, "the files of validation are those that were asked for: measured"),
        (looked_at_fewer, "icecube-look read every event of train: measured 1"),
        (overfit_failed, "the network fits one batch: measured 89.0, required at most"),
        (overfit_asked_less, "the angle that one batch must reach: measured 90.0"),
        (healed, ", seed 1 is that of its configuration and metrics: measured"),
        (not_healed, "the end of as-found, seed 1 is that of its configuration and metrics: measured"),
        (rate, "the rate of as-found, seed 1 is that of its configuration and metrics: measured 123.0"),
        (dropout, "the kind of training of as-found, seed 1 is that of its configuration and metrics: measured"),
        (longer, "the steps of the budget of as-found, seed 1 is that of its configuration and metrics: measured"),
        (ended_elsewhere, "the step at which as-found, seed 1 ended is that of its metrics: measured 1"),
        (norms, "the largest gradient of as-found, seed 1 is that of its metrics: measured"),
        (validation, "validation 1 in the result of the training is that in"),
        (best_step, "the best validation of the training is the lowest of its validations: measured (999"),
        (best_angle, "the best validation of the training is the lowest of its validations: measured"),
        (clipped, "epoch's gradients 1 in the result of the training is that in"),
        (rate_of_training, "the rate of the training is that of its budget: measured 7.0"),
        (warm_up, "the training was trained with the configured budget: measured"),
        (worst_events_gone, "there is a record of each event of validation: measured"),
        (best_event_repeated, "there is a record of each event of validation: measured"),
        (median, "the median angle follows from the records: measured"),
        (digest_of_the_records, "the digest of the records of the training: measured 000"),
    ],
)
def test_the_report_refuses_what_contradicts_another_file(
    tmp_path: Path, edit: Callable[[Stages], None], said: str
) -> None:
    assert said in refused("report", SMOKE, tmp_path, edit)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (worst_events_gone, "there is a record of each event of validation: measured"),
        (other_events, "there is a record of each event of validation: measured"),
        (columns, "the ranges after normalising follow from the statistics of the inputs: measured"),
        (ranges, "the ranges after normalising follow from the statistics of the inputs: measured"),
        (digest_of_the_normaliser, "the normaliser of icecube-look is that of the inputs: measured 000"),
        (parameters, "model/ has the parameters that the training counted: measured 1000000000"),
    ],
)
def test_the_audit_refuses_what_files_and_weights_do_not_give(
    tmp_path: Path, edit: Callable[[Stages], None], said: str
) -> None:
    assert said in refused("audit", SMOKE, tmp_path, edit)


def configured_otherwise(role: str, path: Path) -> None:
    if role.startswith("trial-as-found"):
        described = durable.read_json(path / "stage.json")
        described["configuration"]["budget"]["learning_rate"] = 0.5
        durable.write_json(path / "stage.json", described)


def other_metrics(role: str, path: Path) -> None:
    if role == "trained":
        file = path / "metrics.jsonl"
        file.write_text(file.read_text().replace('"median_angle_degrees"', '"median_degrees"'))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (configured_otherwise, "is the one that the stage was given: measured fingerprint"),
        (other_metrics, "validation 1 in the result of the training is that in"),
    ],
)
def test_other_files_that_contradict_the_result(tmp_path: Path, change: Change, said: str) -> None:
    assert said in refused("report", SMOKE, tmp_path, nothing, change)


@pytest.mark.parametrize("stage", ["audit", "report"])
def test_what_was_not_edited_is_accepted(tmp_path: Path, stage: str) -> None:
    asked_again(stage, SMOKE, tmp_path, nothing)
