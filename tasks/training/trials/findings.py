"""Results of short trainings and of looks at a model, as types, and the table of learning rates: read without torch.

A rate is not recommended for a falling loss alone: on inputs in the thousands the loss falls for a while at every rate,
with gradients of 10^6 and more, and what follows is a network that learns nothing. A recommendation holds for the
inputs, the network and the batch that it was made with: its stage reads them, and is another one when they change.
"""

from collections.abc import Sequence
from typing import Literal

from tasks.stage.result import Result

Ended = Literal["finished", "not_learning", "numerical_failure"]
"""The ends of a trial."""


class Failure(Result):
    """The step that failed: `tensor` names what is not finite, `module` where that began, `examples` are the culprits
    (none in a validation) among `of_examples` of the step (0: it was not found out); `together`: alone each is finite.
    """

    step: int
    tensor: str
    module: str | None
    examples: list[int]
    of_examples: int
    together: bool


class TrialEnd(Result):
    """The end of a trial beside its metric rows: the largest finite gradient, and what was not finite, if anything."""

    failure: Failure | None
    gradient_norm_max: float


class Tried(Result):
    """One rate with one seed. `gradient_norm_max` is the largest finite one.

    `failed` names what was not finite, and at which step; `change` is None then. It is that of the metric that
    decides: below 0 is a gain.
    """

    change: float | None
    gradient_norm_max: float
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


class Recommendation(Result):
    """The rate to take, or None; `because` says it in words."""

    rate: float | None
    because: str


class Outputs(Result):
    """Spread of outputs, as a share of the spread of the truth, and the share of dead units by module."""

    spread_ratio: float
    dead_shares: dict[str, float]


def rate_row(rate: float, tried: Sequence[Tried]) -> RateRow:
    """The row of a rate, of what was tried with each seed."""
    changes = [trial.change for trial in tried if trial.change is not None]
    return RateRow(
        rate=rate,
        seeds=len(tried),
        failed=len(tried) - len(changes),
        mean=sum(changes) / len(changes) if changes else None,
        low=min(changes, default=None),
        high=max(changes, default=None),
        gradient_norm_max=max(trial.gradient_norm_max for trial in tried),
    )


def recommended(rows: Sequence[RateRow], max_gradient_norm: float, min_gain: float) -> Recommendation:
    """The rate with the largest mean gain, of those with which every seed gained `min_gain` or more.

    Rates with a seed that failed, or with a gradient above `max_gradient_norm`, are none.
    """
    faults = {row.rate: _fault(row, max_gradient_norm, min_gain) for row in rows}
    sound = [row for row in rows if not faults[row.rate]]
    if not sound:
        listing = "; ".join(f"{rate:g}: {fault}" for rate, fault in faults.items())
        return Recommendation(rate=None, because=f"none of the rates that were tried can be recommended ({listing})")
    best = min(sound, key=lambda row: row.mean or 0.0)
    others = "; ".join(f"{rate:g}: {fault}" for rate, fault in faults.items() if fault)
    return Recommendation(
        rate=best.rate,
        because=f"of the rates with which every one of {best.seeds} seeds gains {min_gain:g} or more and no gradient "
        f"is above {max_gradient_norm:g}, {best.rate:g} gains most on average, {best.mean:+.4g} ({best.low:+.4g} to "
        f"{best.high:+.4g}), with gradients up to {best.gradient_norm_max:.3g}" + (f" ({others})" if others else ""),
    )


def _fault(row: RateRow, max_gradient_norm: float, min_gain: float) -> str:
    if row.failed:
        return f"{row.failed} of {row.seeds} seeds ended in numbers that are not finite"
    if row.gradient_norm_max > max_gradient_norm:
        return f"gradients up to {row.gradient_norm_max:.3g}, more than {max_gradient_norm:g}"
    assert row.high is not None, "no seed failed"
    if row.high > -min_gain:
        return f"not every seed gains {min_gain:g} ({row.low:+.4g} to {row.high:+.4g})"
    return ""
