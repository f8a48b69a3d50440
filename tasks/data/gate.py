"""Whether inputs are fit to train on: asked once, of statistics, before an hour of training is spent on them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

import torch

from storage.errors import CheckFailed
from tasks.data.normaliser import Normaliser
from tasks.data.statistics import Column
from tasks.stage.configuration import Configuration, scientific


class InputLimits(Configuration):
    """How large inputs may be, as the network gets them."""

    max_absolute_z: float = scientific(
        20.0,
        gt=0,
        description="The largest absolute value that an input may have after normalising. Values of thousands keep a "
        "network from learning at any learning rate, and end in numbers that are not finite.",
    )
    reason_for_more: str | None = scientific(
        None, min_length=10, description="Why inputs beyond that are taken as they are; shown in every table."
    )


def require_inputs(columns: Sequence[Column], normaliser: Normaliser, limits: InputLimits) -> None:
    """CheckFailed names every column that is not finite, is constant, or is too large after `normaliser`.

    `columns` are those of the raw values of train. With `limits.reason_for_more` values may be as large as they are.
    """
    faults = [fault for column in columns for fault in _faults(column, normaliser, limits)]
    if faults:
        allowed = "" if limits.reason_for_more else f" and within +-{limits.max_absolute_z:g}"
        raise CheckFailed(
            "inputs are fit to train on",
            "; ".join(faults),
            f"every column finite, not constant{allowed} after normalising",
            "Leave a constant column out, repair or leave out what is not finite, and normalise what is too large. Raw "
            "inputs need a reason (reason_for_more)",
        )


def require_disjoint(splits: Mapping[str, Collection[int]], what: str) -> None:
    """CheckFailed names two splits that share something; `what` is the plural of what they hold (events, files)."""
    for (one, ours), (other, theirs) in combinations(splits.items(), 2):
        if shared := sorted(set(ours) & set(theirs)):
            raise CheckFailed(
                f"no two splits share {what}",
                f"{one} and {other} share {len(shared):,}, the first {shared[0]}",
                "none",
                "What a model was trained on says nothing about what it has learned",
            )


def _faults(column: Column, normaliser: Normaliser, limits: InputLimits) -> Iterator[str]:
    if column.not_finite or column.minimum is None or column.maximum is None:
        yield f"{column.name}: {column.not_finite:,} of {column.count:,} values are not finite"
        return
    if column.constant:
        yield f"{column.name}: always {column.minimum:g}"
    low, high = _ends(column, normaliser)
    if not -float("inf") < low <= high < float("inf"):
        yield f"{column.name}: {column.minimum:g} to {column.maximum:g} has no finite value after normalising"
    elif max(-low, high) > limits.max_absolute_z and not limits.reason_for_more:
        beyond = "as they are" if normaliser.raw else f"{low:.4g} to {high:.4g} after normalising"
        yield f"{column.name}: {column.minimum:g} to {column.maximum:g}, {beyond}"


def _ends(column: Column, normaliser: Normaliser) -> tuple[float, float]:
    """The column's range after normalising: each step rises."""
    (step,) = [step for step in normaliser.steps if step.name == column.name]
    ends = Normaliser(steps=[step])(torch.tensor([[column.minimum], [column.maximum]]))
    return float(ends[0]), float(ends[1])
