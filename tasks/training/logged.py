"""Checks a training in a result against its metric rows and its configured budget."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from storage.errors import require, require_close, require_equal
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule

ROUNDING = 1e-9
"""The relative difference that another machine's cosine may have."""


def require_trained(
    what: str,
    file: Path,
    training: Mapping[str, Any],
    metric: str,
    budget: Budget,
    examples: int,
    name: str = "",
    trivial: Mapping[str, float] | None = None,
) -> None:
    """Requires that a training is as logged in `file`, spent `budget`, and was compared with `trivial` throughout."""
    require_as_logged(what, file, training, metric, name)
    require_as_configured(what, file, training, budget, examples)
    for place in (training, *training["validations"]) if trivial is not None else ():
        require_equal(f"{what} was compared with what needs no learning", place["trivial"], trivial)


def require_as_logged(what: str, file: Path, training: Mapping[str, Any], metric: str, name: str = "") -> None:
    """Requires that validations, best validation, steps and gradients of a result are those of the metrics in `file`.

    `training` comes from `tasks.training.result.described`. The metric that decides is `metric` in the rows and `name`
    in the result (empty: the same). The best is the lowest or, where `higher` has its name, the
    highest, of equals the earlier.
    """
    name, rows = name or metric, rows_of(file)
    validations = [
        {metric if key == name else key: value for key, value in validation.items()}
        for validation in training["validations"]
    ]
    higher = name in training.get("higher", ())
    best = (max if higher else min)(validations, key=lambda validation: validation[metric])
    require_equal(
        f"the best validation of {what} is the {'highest' if higher else 'lowest'} of its validations",
        (training["best_step"], training[f"best_{name}"]),
        (best["step"], best[metric]),
    )
    validated = [row for row in rows if metric in row]
    norms = [{key: value for key, value in row.items() if key != "step"} for row in rows if "epoch" in row]
    gradients = training["gradients"]
    for kind, reported, logged in (("validation", validations, validated), ("epoch's gradients", gradients, norms)):
        for number, (entry, row) in enumerate(zip_longest(reported, logged), 1):
            require_equal(f"{kind} {number} in the result of {what} is that in {file}", entry, row)
    require_equal(f"the steps of {what} are those in {file}", training["steps"], rows[-1]["step"])


def require_as_configured(what: str, file: Path, training: Mapping[str, Any], budget: Budget, examples: int) -> None:
    """Requires that a training on `examples` spent `budget`, by its result and by the learning rates in `file`."""
    schedule, steps = Schedule(budget, examples), training["steps"]
    spent = Budget.model_validate(training["budget"])
    require_equal(f"{what} was trained with the configured budget", spent.scientific(), budget.scientific())
    whole = steps == schedule.total_steps or (budget.patience_validations and steps < schedule.total_steps)
    require(whole, f"{what} made the steps of its budget", steps, schedule.total_steps)
    divisor, rollbacks = 1.0, []
    for row in rows_of(file):
        if "went_back_from_step" in row:
            rollbacks.append((row["went_back_from_step"], row["step"]))
            divisor *= budget.guard.rate_divisor if budget.guard else 1
        if "learning_rate" in row:
            rate = schedule.learning_rate(row["step"]) / divisor
            where = f"the learning rate of {what} at step {row['step']} in {file} is that of its budget"
            require_close(where, row["learning_rate"], rate, ROUNDING * budget.learning_rate)
    told = [(row["from_step"], row["to_step"]) for row in training.get("guard", {}).get("rollbacks", [])]
    require_equal(f"{what} went back as {file} says", told, rollbacks)


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
