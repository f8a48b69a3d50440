"""A training as its metric rows tell it: the home of its steps, validations and gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import numpy as np

from storage.errors import require, require_close
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
    def of(
        cls, what: str, stage: StageInput, metric: str, budget: Budget, examples: int, higher_is_better: bool = False
    ) -> Self:
        """Reads metrics.jsonl of a finished stage. CheckFailed where `what`, a training on `examples`, did not make the
        steps of its budget, or made them at other rates."""
        rows = metric_rows(stage.run.metrics_file)
        require_budget(what, stage.run.metrics_file, rows, budget, examples)
        return cls.of_rows(rows, metric, higher_is_better)

    @classmethod
    def of_rows(cls, rows: list[dict[str, Any]], metric: str, higher_is_better: bool = False) -> Self:
        """The best of equal validations is the earlier."""
        points = [[row["step"], row[metric]] for row in rows if metric in row]
        epochs = [row for row in rows if "epoch" in row]
        shares = [row["gradient_steps_clipped_share"] for row in epochs]
        best_step, _ = (max if higher_is_better else min)(points, key=lambda point: point[1])
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


def require_budget(what: str, file: Path, rows: list[dict[str, Any]], budget: Budget, examples: int) -> None:
    """CheckFailed unless these rows of `file` are of a training on `examples` that spent `budget`."""
    schedule, steps = Schedule(budget, examples), rows[-1]["step"]
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
    """The rows of metrics.jsonl of a finished training, whose bytes were verified."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
