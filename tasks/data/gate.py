"""The gate for inputs that are fit to train on: asked once, of statistics, before an hour is spent on them."""

from collections.abc import Iterator, Sequence

import torch

from storage.errors import CheckFailed, require_equal
from tasks.data.normaliser import Normaliser
from tasks.data.statistics import Column


def require_inputs(columns: Sequence[Column], normaliser: Normaliser, max_absolute_z: float) -> None:
    """CheckFailed names every column that is not finite, is constant (in fp32 too), or is too large after `normaliser`.

    `columns` are those of the raw values of train.
    """
    if faults := [fault for column in columns for fault in _faults(column, normaliser, max_absolute_z)]:
        raise CheckFailed(
            "inputs are fit to train on",
            "; ".join(faults),
            f"every column finite, not constant and within +-{max_absolute_z:g} after normalising",
            "Repair or leave out what is constant or not finite, and normalise what is too large, or raise "
            "limits.max_absolute_z",
        )


def _faults(column: Column, normaliser: Normaliser, max_absolute_z: float) -> Iterator[str]:
    if column.not_finite or column.minimum is None or column.maximum is None:
        yield f"{column.name}: {column.not_finite:,} of {column.count:,} values are not finite"
        return
    if column.constant:
        yield f"{column.name}: always {column.minimum:g}"
    if column.rounded_away:
        yield (
            f"{column.name}: {column.minimum:.12g} to {column.maximum:.12g}, where fp32, which the network gets, keeps "
            "no difference: subtract an offset in the files"
        )
    low, high = ends(column, normaliser)
    if not -float("inf") < low <= high < float("inf"):
        yield f"{column.name}: {column.minimum:g} to {column.maximum:g} has no finite value after normalising"
    elif max(-low, high) > max_absolute_z:
        yield f"{column.name}: {column.minimum:g} to {column.maximum:g}, {low:.4g} to {high:.4g} after normalising"


def ends(column: Column, normaliser: Normaliser) -> tuple[float, float]:
    """The column's range after normalising: each step rises."""
    steps = [step for step in normaliser.steps if step.name == column.name]
    require_equal(f"the normaliser has one step for the column {column.name}", len(steps), 1)
    ends = Normaliser(steps=steps)(torch.tensor([[column.minimum], [column.maximum]]))
    return float(ends[0]), float(ends[1])
