"""Readings of the constrained layers of a model, and how far its sublayers keep order."""

from __future__ import annotations

from typing import Literal

from tasks.stage.result import Result


class VerifiedWeights(Result):
    """The effective weights of every layer that a variant names, all finite and of the sign that they may have.

    `largest_violation` is how far a weight lies on the wrong side of 0: 0.0, or there would be no result.
    """

    variant: str
    signs: str
    layers_checked: int
    layers: list[str]
    weights_checked: int
    min_weight: float
    max_weight: float
    largest_violation: float
    share_of_zeros: float


class Liveness(Result):
    """Says whether the constrained sublayers do anything: the loss when each is replaced by its mean output.

    Losses on the validation split in nats per token; `rise` is what the replacement costs. `effective_rank` of each
    sublayer's centred outputs is exp(entropy of the shares of variance) (Roy and Vetterli 2007).
    """

    loss_nats_per_token: float
    loss_with_means_nats_per_token: float
    rise_nats_per_token: float
    effective_rank: dict[str, float]


class Movement(Result):
    """How far weights moved in training: medians of |change| over |start|, of weights that did not start at 0.

    `constrained` are the layers that the variant names (also of an arm that leaves them free), `free` all other
    matrices but the embeddings, whose rows move with their tokens alone. None where every weight started at 0.
    `share_of_zeros_left` is the share of the constrained weights that started at 0 and did not end there; None where
    none started at 0.
    """

    constrained: float | None
    free: float | None
    constrained_by_layer: dict[str, float | None]
    share_of_zeros_left: float | None


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
    """Findings on one sublayer.

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
    """Findings on the feed-forward sublayers of a model.

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
    """Share of so many numbers that is below 0, its share in the sum of sizes (0.0 of no size at all), the lowest."""

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
