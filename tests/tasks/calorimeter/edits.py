"""Edits of a finished calorimeter study, every marker sealed again, and by what name each is refused."""

import shutil
from pathlib import Path

import numpy as np

from storage import durable
from tests.tasks.calorimeter.tiny import finished
from tests.tasks.resealed import Change, Edit, Stages, edited, nothing, unchanged


def misses_less(stages: Stages) -> None:
    for row in stages["mae-init-0"]["rows"]:
        row["u_cm"] /= 2


def fewer_errors(stages: Stages) -> None:
    for row in stages["judged"]["rows"]:
        row["mae_bright"] *= 0.9 if row["model"] == "inpaint-finetune-0" else 1.0


def neighbours_are_worse(stages: Stages) -> None:
    for row in stages["judged"]["rows"]:
        row["neighbour_mae_dim"] *= 1.1


def more_are_hidden(stages: Stages) -> None:
    for row in stages["judged"]["rows"]:
        row["dim"] += row["model"] == "mae"


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
    ("audit", neighbours_are_worse, unchanged, "neighbour_mae_dim of event"),
    ("audit", more_are_hidden, unchanged, "dim of event"),
    ("audit", nothing, another_normaliser, "by scratch-0"),
    ("audit", nothing, file_of_another, "by scratch-1"),
    ("audit", edited("look", {"trivial.u_cm": -1000.0}), unchanged, "the central 68 % of u_cm by predicting the mean"),
    ("audit", edited("look", {"trivial.w_cm": 9.0}), unchanged, "the central 68 % of w_cm by predicting the mean"),
]
