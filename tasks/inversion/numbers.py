"""The numbers of the inversion study's trainings, from their verified files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from storage import markers
from storage.records import read_each
from tasks.findings.gates import Gate, at_most, distinct
from tasks.inversion.final_results import PilotFacts
from tasks.inversion.results import TOLERANCE, TrainResult, Trivial
from tasks.inversion.stages import INSIDE, SPLITS, PilotConfig, TrainConfig, TrainsEnergy
from tasks.stage.run import StageInput
from tasks.training.trained import Trained

SAME = 1e-9
"""Relative: the kept weights give the best error again."""


def errors_of(cell: StageInput, matrices: int) -> dict[str, np.ndarray]:
    """Split -> the mean squared error of each matrix, fp64 [matrices]; CheckFailed unless each is there once."""
    required = [(split, matrix) for split in SPLITS for matrix in range(matrices)]
    rows = read_each(cell.path / "records.parquet", ("split", "matrix"), required)
    return {split: np.array([rows[split, matrix]["mse"] for matrix in range(matrices)]) for split in SPLITS}


@dataclass(frozen=True)
class Cell:
    """A training: its mean error on each split, its course, and what it says of its descent."""

    error: dict[str, float]
    trained: Trained
    config: TrainConfig
    result: TrainResult
    weights: str

    @classmethod
    def of(cls, what: str, stage: StageInput, matrices: int) -> Cell:
        config = stage.configuration(TrainConfig)
        error = {split: float(errors.mean()) for split, errors in errors_of(stage, matrices).items()}
        weights = markers.digest(stage.run, "model/model.safetensors")
        return cls(error, _trained(what, stage, config), config, TrainResult.read(stage), weights)


def pilot_of(stage: StageInput, trivial: Trivial) -> PilotFacts:
    config = stage.configuration(PilotConfig)
    assert config.budget.not_learning is not None
    required = config.budget.not_learning.max_ratio * min(trivial.by_name.values())
    return PilotFacts(validation_mse=_trained("the pilot", stage, config).best, required_mse=required)


def _trained(what: str, stage: StageInput, config: TrainsEnergy) -> Trained:
    """Matrices do not come twice: one epoch is the whole training."""
    assert config.budget.steps is not None
    seen = config.budget.steps * config.budget.effective_batch_examples
    return Trained.of(what, stage, "validation_mse", config.budget, seen)


def gates(pilot: PilotFacts, cells: Mapping[str, Cell]) -> Iterable[Gate]:
    """What must hold before a number is shown; `cells` by name."""
    away = {name: abs(cell.error[INSIDE] / cell.trained.best - 1) for name, cell in cells.items()}
    worst = max(away, key=lambda name: away[name])
    yield at_most("error of the pilot, which must learn", pilot.validation_mse, pilot.required_mse)
    yield at_most(f"kept weights give the best validation again, relative (worst: {worst})", away[worst], SAME)
    yield distinct("weights of the trainings", {name: cell.weights for name, cell in cells.items()})
    largest = max(cell.result.largest_difference for cell in cells.values())
    yield at_most("predictions of a matrix differ by how it comes, in fp64", largest, TOLERANCE)
