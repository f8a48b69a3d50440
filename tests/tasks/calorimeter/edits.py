"""Edits of a finished calorimeter study, every marker sealed again, and by what name each is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage import durable
from tasks.calorimeter.judge import PREDICTIONS
from tests.tasks.calorimeter.tiny import finished
from tests.tasks.resealed import Change, Edit, Stages, edited, nothing, unchanged


def misses_less(stages: Stages) -> None:
    for row in stages["mae-init-0"]["rows"]:
        row["u_cm"] /= 2


def fewer_errors(stages: Stages) -> None:
    for row in stages["judged"]["rows"]:
        row["mae_bright"] *= 0.9 if row["model"] == "inpaint-finetune-0" else 1.0


def predictions(model: str, **edits: Callable[[dict[str, Any]], Any]) -> Change:
    """Other predictions of a model."""

    def change(role: str, path: Path) -> None:
        if role == "judged":
            rows = pq.read_table(path / PREDICTIONS).to_pylist()
            for row in rows:
                row.update({name: of(row) for name, of in edits.items()} if row["model"] == model else {})
            pq.write_table(pa.Table.from_pylist(rows), path / PREDICTIONS)

    return change


fills_in_the_truth = predictions("inpaint-finetune-0", predicted=lambda row: row["photons"])
worse_neighbours = predictions("inpaint-scratch-1", neighbours=lambda row: row["neighbours"] + 50.0)
other_light = predictions("mae", photons=lambda row: row["photons"] + 1)
another_sensor_was_hidden = predictions("mae", sensor=lambda row: 4759 - row["sensor"])


def another_truth(role: str, path: Path) -> None:
    if role == "data":
        file = path / "showers" / "validation.truth"
        truth = np.fromfile(file, np.float32) + np.float32(0.5)
        file.unlink()
        truth.tofile(file)


def weights_of_another(role: str, path: Path) -> None:
    if role == "inpaint-frozen-0":
        other = finished().path("calorimeter-inpaint (finetune, seed 0)")
        shutil.copy(other / "model" / "model.safetensors", path / "model" / "model.safetensors")


def another_normaliser(role: str, path: Path) -> None:
    if role == "scratch-0":
        file = path / "model" / "normaliser.json"
        told = durable.read_json(file)
        told["steps"][0]["offset"] = 2.9
        durable.write_json(file, told)


def file_of_another(role: str, path: Path) -> None:
    if role == "export":
        shutil.copy(path / "onnx" / "scratch-0.onnx", path / "onnx" / "scratch-1.onnx")


REFUSED: list[tuple[str, Edit, Change, str]] = [
    ("audit", edited("mae-init-1", {"taken": None}), unchanged, "what mae-init-1 began with: measured None"),
    ("report", nothing, weights_of_another, "frozen encoder differs from that of the pretraining: measured"),
    ("report", nothing, another_normaliser, "models with another normaliser than their arm's: measured 1"),
    ("audit", nothing, another_truth, "the share of the truth of validation that is what was generated"),
    ("audit", misses_less, unchanged, "u_cm of event"),
    ("audit", fewer_errors, unchanged, "mae_bright of event"),
    ("audit", nothing, fills_in_the_truth, "predicted of sensor"),
    ("audit", nothing, worse_neighbours, "neighbours of sensor"),
    ("audit", nothing, another_sensor_was_hidden, "the hidden sensors of event"),
    ("audit", nothing, other_light, "the hidden sensors of event"),
    ("audit", nothing, another_normaliser, "by scratch-0"),
    ("audit", nothing, file_of_another, "by scratch-1"),
    ("audit", edited("look", {"trivial.u_cm": -1000.0}), unchanged, "the central 68 % of u_cm by predicting the mean"),
    ("audit", edited("look", {"trivial.w_cm": 9.0}), unchanged, "the central 68 % of w_cm by predicting the mean"),
]
