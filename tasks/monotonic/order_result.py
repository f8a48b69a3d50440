"""Whether feed-forward sublayers are monotone functions: what was proved or found, and what was measured on text."""

from __future__ import annotations

from typing import Literal

from tasks.stage.result import Result

Method = Literal["sign times slope", "interval bound of the Jacobian", "none"]
Answer = Literal["no", "unknown", "yes"]
ANSWERS: tuple[Answer, ...] = ("no", "unknown", "yes")
"""The worst first."""


class Counterexample(Result):
    """Inputs x <= y in every coordinate, and an output that is lower at y by `fall`, in float64."""

    x: list[float]
    y: list[float]
    output: int
    fall: float


class SublayerCertificate(Result):
    """What is known of one sublayer.

    Both violations are slopes, an output's change per unit of |y - x|_1: the bound holds for every pair (None: there
    is no bound), the other is the steepest that was found and verified. 0.0 is none.
    """

    sublayer: str
    certified: Answer
    method: Method
    reason: str
    tensors_checked: int
    worst_violation_bound: float | None
    worst_violation_found: float
    pairs_tried: int
    counterexample: Counterexample | None


class Certificate(Result):
    """What is known of the feed-forward sublayers of a model.

    `sublayers` has the worst first: `certified` is its answer, and it alone keeps its counterexample.
    """

    scope: str
    variant: str
    activation: str
    certified: Answer
    tensors_checked: int
    pairs_tried: int
    sublayers: list[SublayerCertificate]


class Negatives(Result):
    """Of so many numbers: the share below 0, their share in the sum of sizes (0.0 of no size at all), the lowest."""

    numbers: int
    share: float
    share_of_size: float
    lowest: float


class SublayerOnText(Result):
    """One sublayer at seen inputs: entries of its Jacobian, and changes of its outputs when an input rises."""

    sublayer: str
    jacobian: Negatives
    rises: Negatives


class OrderOnText(Result):
    """The same over all sublayers, and for each; every one was looked at for so many seen inputs."""

    inputs: int
    jacobian: Negatives
    rises: Negatives
    sublayers: list[SublayerOnText]
