"""Checks a training in a result against its metric rows and its configured budget."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from storage.errors import require_equal
from tasks.training.budget import Budget
from tasks.training.trained import metric_rows, require_budget


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
    name, rows = name or metric, metric_rows(file)
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
    """Requires that a training on `examples` spent `budget`, by its result and by the rows in `file`."""
    rows = metric_rows(file)
    spent = Budget.model_validate(training["budget"])
    require_equal(f"{what} was trained with the configured budget", spent.scientific(), budget.scientific())
    require_budget(what, file, rows, budget, examples)
    went_back = [(row["went_back_from_step"], row["step"]) for row in rows if "went_back_from_step" in row]
    rollbacks = [(row["from_step"], row["to_step"]) for row in training.get("guard", {}).get("rollbacks", [])]
    require_equal(f"{what} went back as {file} says", rollbacks, went_back)
