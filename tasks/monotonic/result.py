"""What was read from the constrained layers of a model."""

from __future__ import annotations

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
    """Whether the constrained sublayers do anything: the loss when each is replaced by its mean output.

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
