"""A training as its metric rows tell it: the home of its steps, validations and gradients."""

import json
import math
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors import safe_open

from storage import durable
from storage.errors import BadInput, require, require_close, require_equal
from tasks.stage.result import Result
from tasks.stage.run import StageInput
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule

ROUNDING = 1e-9
"""The relative difference that another machine's cosine may have."""


class Trained(Result):
    """One training: the step of its best validation, whose weights are kept, its last step and value, all validations
    as [step, value] of the metric that decides; the share of its steps whose gradient was clipped, and the longest."""

    best_step: int
    last_step: int
    last: float
    validations: list[list[float]]
    clipped_share: float
    largest_gradient_norm: float

    @classmethod
    def of(cls, what: str, stage: StageInput, metric: str, budget: Budget, examples: int) -> Self:
        """Reads metrics.jsonl of a finished stage. CheckFailed where `what`, a training on `examples`, did not make the
        steps of its budget, or made them at other rates."""
        file = stage.run.metrics_file
        rows = metric_rows(file)
        require_budget(what, file, rows, budget, examples)
        steps = [row["step"] for row in rows if metric in row]
        planned = [step for step in sorted(Schedule(budget, examples).validation_steps) if step <= rows[-1]["step"]]
        require_equal(f"the validations of {what} in {file} are those of its budget", steps, planned)
        require(any("epoch" in row for row in rows), f"{what} has rows of its epochs in {file}", "none", "some")
        return cls.of_rows(rows, metric)

    @classmethod
    def of_rows(cls, rows: list[dict[str, Any]], metric: str) -> Self:
        """The best validation is the lowest; of equal ones the earlier."""
        points = [[row["step"], row[metric]] for row in rows if metric in row]
        epochs = [row for row in rows if "epoch" in row]
        shares = [row["gradient_steps_clipped_share"] for row in epochs]
        best_step, _ = min(points, key=lambda point: point[1])
        return cls(
            best_step=best_step,
            last_step=rows[-1]["step"],
            last=points[-1][1],
            validations=points,
            clipped_share=float(np.average(shares, weights=np.diff([0.0, *(row["epoch"] for row in epochs)]))),
            largest_gradient_norm=max(float(row["gradient_norm_max"]) for row in epochs),
        )

    @property
    def best(self) -> float:
        return next(value for step, value in self.validations if step == self.best_step)


def weights_of(stage: StageInput, folder: str = "model") -> str:
    """A digest of the files of the weights in a folder of a verified stage: equal ones are one training."""
    outputs = durable.read_json(stage.run.marker_file)["outputs"]
    files = {name: about["sha256"] for name, about in outputs.items() if name.startswith(f"{folder}/")}
    return durable.sha256_json({name: digest for name, digest in files.items() if name.endswith(".safetensors")})


def number_kept(folder: Path) -> int:
    """The number of weights that lie in a saved model, tied ones once; reads the heads of its files alone."""
    numbers = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            numbers += sum(math.prod(tensors.get_slice(name).get_shape()) for name in tensors.keys())  # noqa: SIM118
    return numbers


def require_budget(what: str, file: Path, rows: list[dict[str, Any]], budget: Budget, examples: int) -> None:
    """CheckFailed unless these rows of `file` are of a training on `examples` that spent `budget`."""
    require(rows, f"{what} has metric rows in {file}", "none", "some")
    schedule, steps = Schedule(budget, examples), rows[-1]["step"]
    rated = [row["step"] for row in rows if "learning_rate" in row]
    require_equal(f"the last step of {what} has a learning rate in {file}", rated[-1:], [steps])
    unguarded = not budget.guard and any("went_back_from_step" in row or "skipped_examples" in row for row in rows)
    require(not unguarded, f"{what}, whose budget has no guard, went back or skipped batches in {file}", "rows", "none")
    whole = steps == schedule.total_steps or (budget.patience_validations and steps < schedule.total_steps)
    require(whole, f"{what} made the steps of its budget", steps, schedule.total_steps)
    divisor = 1.0
    for row in rows:
        if "went_back_from_step" in row:
            divisor *= budget.guard.rate_divisor if budget.guard else 1
        if "learning_rate" in row:
            rate = schedule.learning_rate(row["step"]) / divisor
            where = f"the learning rate of {what} at step {row['step']} in {file} is that of its budget"
            require_close(where, row["learning_rate"], rate, ROUNDING * budget.learning_rate)


def metric_rows(file: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl of a finished training. BadInput names a line that is none."""
    rows = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            rows.append(json.loads(line))
            rows[-1]["step"] + 0
        except (ValueError, TypeError, KeyError, IndexError):
            raise BadInput(f"{file}, line {number} is no row of a training: {line[:80]!r}") from None
    return rows
