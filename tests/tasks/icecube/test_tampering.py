"""What a third reviewer edited in a finished study, every marker sealed again: each is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.tasks.icecube.tiny import SMOKE
from tests.tasks.resealed import (
    AUDIT,
    Change,
    Edit,
    Stages,
    asked_again,
    configured_otherwise,
    edited,
    nothing,
    refused,
)


def batches_overlap(stages: Stages) -> None:
    found = stages["events"]["result"]
    found["validation"]["batches"] = found["train"]["batches"]


def healed(stages: Stages) -> None:
    for role, stage in stages.items():
        if role.startswith("trial-"):
            steps = stage["result"]["steps_of_budget"]
            stage["result"] |= {"ended": "finished", "step": steps, "validation_angle_degrees": 20.0}
            stage["result"]["validations"] = [[float(steps), 20.0]]


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


def columns(stages: Stages) -> None:
    for column in stages["look"]["result"]["columns"]:
        column |= {"minimum": 0.0, "maximum": 1.0}


def digest_of_the_normaliser(stages: Stages) -> None:
    for role in ("look", "trained"):
        stages[role]["result"]["normaliser_digest"] = "0" * 64


def ended(how: str) -> str:
    return "not_learning" if how == "finished" else "finished"


OF_TRIAL = "as-found, seed 1 is that of its configuration and metrics: measured"
OVERFIT = {"fit.after": 89.0}
REFUSED: list[tuple[Edit, str]] = [
    *AUDIT,
    (edited("events", {"train.events": 10**8}), "the events of train are those of the records of"),
    (batches_overlap, "the files of validation are those that were asked for: measured"),
    (edited("look", {"events": 1}), "icecube-look read every event of train: measured 1"),
    (edited("overfit", OVERFIT), "the network fits one batch: measured 89.0, required at most"),
    (edited("overfit", OVERFIT | {"required_degrees": 90.0}), "the angle that one batch must reach: measured 90.0"),
    (healed, ", seed 1 is that of its configuration and metrics: measured"),
    (edited("trial-*", {"ended": ended}), f"the end of {OF_TRIAL}"),
    (edited("trial-*", {"learning_rate": 123.0}), f"the rate of {OF_TRIAL} 123.0"),
    (edited("trial-*", {"trained.dropout": 0.7}), f"the kind of training of {OF_TRIAL}"),
    (edited("trial-*", {"steps_of_budget": 10**6}), f"the steps of the budget of {OF_TRIAL}"),
    (edited("trial-*", {"step": 1}), "the step at which as-found, seed 1 ended is that of its metrics: measured 1"),
    (
        edited("trial-*", {"gradient_norm_max": lambda norm: norm * 1e9}),
        "the largest gradient of as-found, seed 1 is that of its metrics: measured",
    ),
    (
        edited("trained", {"training.validations.0.median_angle_degrees": 10.0}),
        "validation 1 in the result of the training is that in",
    ),
    (
        edited("trained", {"training.best_step": 999}),
        "the best validation of the training is the lowest of its validations: measured (999",
    ),
    (
        edited("trained", {"training.best_angle_degrees": 5.0}),
        "the best validation of the training is the lowest of its validations: measured",
    ),
    (
        edited("trained", {"training.gradients.0.gradient_steps_clipped_share": 0.0}),
        "epoch's gradients 1 in the result of the training is that in",
    ),
    (edited("trained", {"learning_rate": 7.0}), "the rate of the training is that of its budget: measured 7.0"),
    (
        edited("trained", {"training.budget.warmup_ratio": 0.5}),
        "the training was trained with the configured budget: measured",
    ),
    (worst_events_gone, "there is a record of each event of validation: measured"),
    (best_event_repeated, "there is a record of each event of validation: measured"),
    (
        edited("trained", {"median_degrees": lambda median: median + 1e-4}),
        "the median angle follows from the records: measured",
    ),
    (edited("trained", {"records_digest": "0" * 64}), "the digest of the records of the training: measured 000"),
]


@pytest.mark.parametrize(("edit", "said"), REFUSED)
def test_the_report_refuses_what_contradicts_another_file(tmp_path: Path, edit: Edit, said: str) -> None:
    assert said in refused("report", SMOKE, tmp_path, edit)


FOLLOW = "the ranges after normalising follow from the statistics of the inputs: measured"


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (worst_events_gone, "there is a record of each event of validation: measured"),
        (other_events, "there is a record of each event of validation: measured"),
        (columns, FOLLOW),
        (edited("look", {"normalised": lambda found: {name: [-1.0, 1.0] for name in found}}), FOLLOW),
        (digest_of_the_normaliser, "the normaliser of icecube-look is that of the inputs: measured 000"),
        (
            edited("trained", {"parameters": 10**9}),
            "model/ has the parameters that the training counted: measured 1000000000",
        ),
    ],
)
def test_the_audit_refuses_what_files_and_weights_do_not_give(tmp_path: Path, edit: Edit, said: str) -> None:
    assert said in refused("audit", SMOKE, tmp_path, edit)


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
