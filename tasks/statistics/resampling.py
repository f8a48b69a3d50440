"""Bootstrap intervals of numbers that are functions of sums over sources."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from tasks.stage.result import Result

RESAMPLING_SEED = 0
"""Resampling is part of the result, so its seed is fixed; the interval is a function of the records."""

NO_SPREAD = 1e-12
"""Leave-one-out values that are closer than this, on the scale of the value or of 1, differ by rounding only."""


class Estimate(Result):
    """A number with its interval [low, high]; documents of a single source give none."""

    value: float
    interval: list[float] | None


def sums_by_source(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Column -> its sum over the rows of each source, float64 [sources]; sources in the order of their names.

    Added in the order of `example_id`, so that the order of the records changes no bit.
    """
    place = {source: number for number, source in enumerate(sorted({row["source"] for row in rows}))}
    sums = {column: np.zeros(len(place)) for column in columns}
    for row in sorted(rows, key=lambda row: row["example_id"]):
        for column, values in sums.items():
            values[place[row["source"]]] += row[column]
    return sums


def interval(
    statistic: Callable[..., Any], columns: Sequence[np.ndarray], resamples: int, confidence_level: float
) -> list[float] | None:
    """Bootstrap interval [low, high] of `statistic(*totals)`; None for fewer than two sources, which give none.

    `columns` are float64 [sources] each, and `statistic` takes their totals, as arrays of any shape. Rows of one
    source (docstrings of one file) resemble each other, so whole sources are resampled, with all of their columns
    together (BCa; Efron 1987).
    """
    if len(columns[0]) < 2:
        return None
    totals = [column.sum() for column in columns]
    value = float(statistic(*totals))
    left_out = statistic(*(total - column for total, column in zip(totals, columns, strict=True)))
    if np.ptp(left_out) <= NO_SPREAD * max(1.0, abs(value)):
        return [value, value]  # no resample differs either, and BCa is undefined

    def of_resample(*resampled: np.ndarray, axis: int = -1) -> np.ndarray:
        return statistic(*(column.sum(axis=axis) for column in resampled))

    low, high = bootstrap(
        tuple(columns),
        of_resample,
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        batch=100,
        confidence_level=confidence_level,
        method="BCa",
        rng=np.random.default_rng(RESAMPLING_SEED),
    ).confidence_interval
    return [float(low), float(high)]
