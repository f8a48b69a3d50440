"""Results of short trainings and of looks at a model, as types: a report reads them without torch."""

from __future__ import annotations

from typing import Literal

from tasks.stage.result import Result

Ended = Literal["finished", "not_learning", "numerical_failure"]
"""The ends of a trial."""


class Tried(Result):
    """One rate with one seed. `gradient_norm_max` is the largest finite one, `parameter` that with most of it.

    `failed` names what was not finite, and at which step; `change` is None then. It is that of the metric that
    decides: below 0 is a gain.
    """

    change: float | None
    gradient_norm_max: float
    parameter: str
    failed: str | None = None


class RateRow(Result):
    """One rate over all seeds: the change of the probe's metric, of the seeds that came to the end (else None)."""

    rate: float
    seeds: int
    failed: int
    mean: float | None
    low: float | None
    high: float | None
    gradient_norm_max: float
    parameter: str


class Recommendation(Result):
    """The rate to take, or None; `because` says it in words."""

    rate: float | None
    because: str


class SingleBatchFit(Result):
    """The metric that decides, on the batch itself, before and after `steps` steps on its `examples`."""

    examples: int
    steps: int
    before: float
    after: float
    gradient_norm_max: float


class Outputs(Result):
    """Spread of outputs, as a share of the spread of the truth, and the share of dead units by module."""

    spread_ratio: float
    dead_shares: dict[str, float]
