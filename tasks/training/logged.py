"""That what a result says of a training is what the training wrote on its way, and what it was configured to spend."""

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
"""Relative: another machine's cosine."""


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
    """A training is as logged in `file`, spent `budget`, and was compared at each validation with what is `trivial`."""
    require_as_logged(what, file, training, metric, name)
    require_as_configured(what, file, training, budget, examples)
    for place in (training, *training["validations"]) if trivial is not None else ():
        require_equal(f"{what} was compared with what needs no learning", place["trivial"], trivial)


def require_as_logged(what: str, file: Path, training: Mapping[str, Any], metric: str, name: str = "") -> None:
    """The validations in a result, the best of them, the steps and the gradients are those of the metrics in `file`.

    `training` is as `tasks.training.result.described` gives it. `metric` is the one that decides, as rows call it, and
    `name` as the result does: empty where it is the same. The best is the lowest, of equals the earlier.
    """
    name, rows = name or metric, rows_of(file)
    told = [{metric if key == name else key: value for key, value in one.items()} for one in training["validations"]]
    best = min(told, key=lambda one: one[metric])
    require_equal(
        f"the best validation of {what} is the lowest of its validations",
        (training["best_step"], training[f"best_{name}"]),
        (best["step"], best[metric]),
    )
    found = [row for row in rows if metric in row]
    norms = [{key: value for key, value in row.items() if key != "step"} for row in rows if "epoch" in row]
    for kind, ours, logged in (("validation", told, found), ("epoch's gradients", training["gradients"], norms)):
        for number, (one, row) in enumerate(zip_longest(ours, logged), 1):
            require_equal(f"{kind} {number} in the result of {what} is that in {file}", one, row)
    require_equal(f"the steps of {what} are those in {file}", training["steps"], rows[-1]["step"])


def require_as_configured(what: str, file: Path, training: Mapping[str, Any], budget: Budget, examples: int) -> None:
    """A training on so many examples spent `budget`, by its result and by the learning rates in `file`."""
    schedule, steps = Schedule(budget, examples), training["steps"]
    spent = Budget.model_validate(training["budget"])
    require_equal(f"{what} was trained with the configured budget", spent.scientific(), budget.scientific())
    whole = steps == schedule.total_steps or (budget.patience_validations and steps < schedule.total_steps)
    require(whole, f"{what} made the steps of its budget", steps, schedule.total_steps)
    for row in rows_of(file):
        if "learning_rate" in row:
            rate = schedule.learning_rate(row["step"])
            where = f"the learning rate of {what} at step {row['step']} in {file} is that of its budget"
            require_close(where, row["learning_rate"], rate, ROUNDING * budget.learning_rate)


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
