"""The gates before a number of the inversion study is shown: a stage's own words beside its files."""

from __future__ import annotations

from typing import Any

import numpy as np

from storage.errors import require_close, require_each_once, require_equal, require_limit
from storage.records import read_records, records_digest
from tasks.inversion.results import MatricesResult, PilotResult, TrainResult, Trivial
from tasks.inversion.stages import PilotConfig, TrainConfig, TrainsEnergy
from tasks.stage.run import StageInput
from tasks.training.logged import require_trained

SPLITS = ("validation", "out_of_distribution")
KEY = ("split", "matrix")
SAME = 1e-9


def require_pilot(given: StageInput, told: PilotResult, trivial: Trivial) -> None:
    """The pilot was trained as asked for, and was better than it must be."""
    config = given.configuration(PilotConfig)
    _require_trained("the pilot", given, told.training, config, trivial)
    assert config.budget.not_learning is not None
    required = config.budget.not_learning.max_ratio * min(trivial.by_name.values())
    require_close("the error that the pilot must reach", told.required_mse, required, SAME * required)
    require_equal("the error of the pilot is its best", told.validation_mse, told.training["best_validation_mse"])
    require_limit("the pilot has learned", told.validation_mse, required)


def require_training(what: str, given: StageInput, told: TrainResult, fixed: MatricesResult) -> None:
    """A training was made as asked for, and says of itself what its metrics and its records do."""
    config, training, trivial = given.configuration(TrainConfig), told.training, fixed.validation.trivial
    require_records(what, given, told, fixed)
    _require_trained(what, given, training, config, trivial)
    best, last = training["best_validation_mse"], training["validations"][-1]
    for name, measured, required in (
        ("kind of negatives", told.mining, config.mining),
        ("best step", told.best_step, training["best_step"]),
        ("last step", told.last_step, training["steps"]),
        ("last error", (told.last_step, told.last_mse), (last["step"], last["validation_mse"])),
    ):
        require_equal(f"the {name} of {what} is that of its training", measured, required)
    require_close(f"the error of {what} on validation is its best", told.validation_mse, best, SAME * best)
    ratio = told.validation_mse / min(trivial.by_name.values())
    require_close(f"the ratio of {what} to the trivial error", told.ratio_to_trivial, ratio, SAME * ratio)


def _require_trained(
    what: str, given: StageInput, training: dict[str, Any], config: TrainsEnergy, trivial: Trivial
) -> None:
    """Matrices do not come twice: one epoch is the whole training."""
    budget, file = config.budget, given.run.metrics_file
    assert budget.steps is not None
    seen = budget.steps * budget.effective_batch_examples
    require_trained(what, file, training, "validation_mse", budget, seen, trivial=trivial.by_name)


def require_records(
    what: str, given: StageInput, told: TrainResult, fixed: MatricesResult
) -> dict[tuple[str, int], float]:
    """The error of each matrix of both splits, each there once; the errors in the result follow from them."""
    file = given.path / "records.parquet"
    rows = [(row["split"], row["matrix"], row["mse"]) for row in read_records(file)]
    required = ((split, matrix) for split in SPLITS for matrix in range(getattr(fixed, split).matrices))
    found = ((split, matrix) for split, matrix, _ in rows)
    require_each_once(f"the records of {what} hold each matrix of both splits once", found, required, f" in {file}")
    for split in SPLITS:
        mean, stated = np.mean([mse for of, _, mse in rows if of == split]), getattr(told, f"{split}_mse")
        require_close(f"the error of {what} on {split} follows from the records", stated, float(mean), SAME * stated)
    require_equal(f"the digest of the records of {what}", told.records_digest, records_digest(file, KEY))
    return {(split, matrix): mse for split, matrix, mse in rows}
