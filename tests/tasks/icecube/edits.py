"""Edits of a finished direction study, every marker sealed again, and by what name each is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from storage import durable
from tasks.training.culprits import FOLDER
from tests.tasks.icecube.tiny import finished
from tests.tasks.resealed import Change, Edit, Stages, configured_otherwise, edited, nothing, unchanged

NORMALISED, FAILED = "normalise-1", "exploding-rate-1"


def rows(role: str, change: Callable[[list[dict[str, Any]]], object], of: str = "rows") -> Edit:
    def edit(stages: Stages) -> None:
        change(stages[role][of])

    return edit


def each(**changes: Callable[[Any], Any]) -> Callable[[list[dict[str, Any]]], object]:
    """Other values of some columns, in the rows that have them."""
    return lambda of: [
        row.update({name: change(row[name])}) for row in of for name, change in changes.items() if name in row
    ]


def healed(stages: Stages) -> None:
    """The trial as found came to its end, at 20 degrees, by its metric rows and its records alike."""
    found = stages["as-found-1"]
    each(angle_degrees=lambda _: 20.0)(found["rows"])
    each(angle_degrees=lambda _: 20.0)(found["metrics"])


def file(role: str, name: str, change: Callable[[Path], object]) -> Change:
    def edit(of: str, path: Path) -> None:
        if of == role:
            change(path / name)

    return edit


def negated(file: Path) -> None:
    save_file({name: -tensor for name, tensor in load_file(file).items()}, file)


def harmless(file: Path) -> None:
    """Weights with which no number is beyond fp32."""
    save_file({name: 0 * tensor for name, tensor in load_file(file).items()}, file)


def other_scale(file: Path) -> None:
    values = durable.read_json(file)
    values["steps"][0]["scale"] *= 2
    durable.write_json(file, values)


def weights_of_another(path: Path) -> None:
    shutil.copy(finished().path("icecube-trial (as-found, seed 1)") / "model" / "model.safetensors", path)


WEIGHTS = "model/model.safetensors"
TWICE = "the records hold each event_id and batch_id once"
REFUSED: list[tuple[str, Edit, Change, str]] = [
    ("report", nothing, configured_otherwise, "is the one that the stage was given: measured fingerprint"),
    ("report", rows("events", lambda of: of.pop()), unchanged, "the records hold each split and batch_id once"),
    ("audit", rows("events", each(events=lambda count: count + 1)), unchanged, "the events of file 1"),
    ("audit", rows("events", each(pulses=lambda count: count - 1)), unchanged, "the pulses of file 1"),
    ("audit", edited("look", {"trivial.best_constant_degrees": 85.0}), unchanged, "the best constant direction"),
    ("audit", edited("look", {"trivial.azimuth_degrees": 300.0}), unchanged, "the best constant direction"),
    ("report", edited("look", {"columns.0.name": "times"}), unchanged, "one step for the column times"),
    ("report", edited("look", {"columns.0.maximum": 1e6}), unchanged, "largest input after normalising: measured 33"),
    ("report", nothing, file("look", "normaliser/normaliser.json", other_scale), "normalisers other than the"),
    ("report", nothing, file(NORMALISED, "model/normaliser.json", other_scale), "normalisers other than the"),
    ("report", edited("overfit", {"after": 89.0}), unchanged, "angle on one batch, which must be fitted, in degrees"),
    (
        "report",
        rows("raw_rates", each(rate=lambda rate: 2 * rate)),
        unchanged,
        "the records hold each rate and seed once",
    ),
    ("report", rows("raw_rates", lambda of: of.pop()), unchanged, "the records hold each rate and seed once"),
    ("report", rows(NORMALISED, each(angle_degrees=lambda angle: 0.5 * angle), "metrics"), unchanged, "kept weights"),
    ("report", rows(NORMALISED, each(angle_degrees=lambda angle: 0.5 * angle)), unchanged, "kept weights give"),
    ("report", rows(NORMALISED, lambda of: of.pop(), "metrics"), unchanged, "normalise, seed 1 ends as its budget"),
    ("report", rows("as-found-1", each(step=lambda step: step // 2), "metrics"), unchanged, "ends as its budget"),
    ("report", edited(FAILED, {"failure": None}), unchanged, "exploding-rate, seed 1 left records, or failed"),
    ("report", nothing, file(NORMALISED, WEIGHTS, weights_of_another), "weights of the trainings: measured those of"),
    ("audit", healed, unchanged, "by as-found-1 is what the audit computes"),
    ("audit", nothing, file(FAILED, f"{FOLDER}/model.safetensors", harmless), f"whether {FAILED} fails is what"),
    ("audit", nothing, file(NORMALISED, WEIGHTS, negated), "by normalise-1 is what the audit computes"),
    ("audit", nothing, file("trained", WEIGHTS, negated), "by trained is what the audit computes"),
    (
        "audit",
        rows("trained", each(angle_degrees=lambda angle: 0.9 * angle)),
        unchanged,
        "by trained is what the audit",
    ),
    ("audit", rows("trained", lambda of: of.append(of[0])), unchanged, TWICE),
    ("audit", rows("trained", lambda of: of.pop()), unchanged, TWICE),
    ("audit", rows("trained", each(event_id=lambda number: number + 10**6)), unchanged, TWICE),
    ("audit", edited("trained", {"outputs.spread_ratio": 0.9}), unchanged, "the spread of the outputs is what"),
    ("audit", edited("trained", {"largest_difference": 0.1}), unchanged, "the largest difference of an answer is what"),
    ("report", edited("trained", {"outputs.dead_shares": {"layer": 1.5}}), unchanged, "largest share of dead units"),
    (
        "report",
        rows("trained", each(learning_rate=lambda rate: 2 * rate), "metrics"),
        unchanged,
        "learning rate of the",
    ),
    ("report", rows("trained", lambda of: of.pop(), "metrics"), unchanged, "the training"),
]
