"""Readings of the constrained layers of a model, and how far its sublayers keep order."""

from statistics import median
from typing import Literal

from pydantic import Field, JsonValue

from tasks.monotonic.arm import ALIVE_SHARE, LEAST_RANK
from tasks.monotonic.stages import By
from tasks.stage.result import Result


class VerifiedWeights(Result):
    """The effective weights of all constrained layers, which were finite and had their signs, or there is no result."""

    layers: list[str]
    weights_checked: int
    min_weight: float
    max_weight: float
    share_of_zeros: float


class Liveness(Result):
    """Says whether the constrained sublayers do anything: the loss when each is replaced by its mean output.

    Losses on the validation split in nats per token. `effective_rank` of each sublayer's centred outputs is
    exp(entropy of the shares of variance) (Roy and Vetterli 2007).
    """

    loss_nats_per_token: float
    loss_with_means_nats_per_token: float
    effective_rank: dict[str, float]

    @property
    def rise_nats_per_token(self) -> float:
        """Cost of the replacement."""
        return self.loss_with_means_nats_per_token - self.loss_nats_per_token


class Movement(Result):
    """How far weights moved in training: medians of |change| over |start|, of weights that did not start at 0.

    `constrained` are the layers that the variant names (also of an arm that leaves them free), `free` all other
    matrices but the embeddings, whose rows move with their tokens alone. None where every weight started at 0.
    """

    constrained: float | None
    free: float | None


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

    `worst_violation_found` is a slope, an output's change per unit of |y - x|_1: the steepest that was found and
    verified. 0.0 is none.
    """

    sublayer: str
    certified: Answer
    reason: str
    tensors_checked: int
    worst_violation_found: float
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
    sublayers: list[SublayerCertificate]


class OrderOnText(Result):
    """How the outputs of all sublayers change when inputs that text gives rise: share of so many changes that is below
    0, its share in the sum of sizes (0.0 of no size at all), the lowest; of each sublayer at so many inputs."""

    inputs: int
    changes: int
    share: float
    share_of_size: float
    lowest: float


class ArmResult(Result):
    """train-baseline, train-monotonic, train-placebo: what an arm's constrained layers became.

    `constraint` is None for an arm that was trained without.
    `trials`, where several learning rates were tried: rate -> best validation loss; `numerics` are those of all trials.
    """

    constraint: VerifiedWeights | None
    sublayers: Liveness
    movement: Movement
    trials: dict[str, float] = Field(default_factory=dict)
    numerics: dict[str, JsonValue] = Field(default_factory=dict)


class ModelOrder(Result):
    """Monotonicity of one model's feed-forward sublayers, and how far they keep order on test text."""

    certificate: Certificate
    on_text: OrderOnText


class ArmFacts(Result):
    """Cost of one arm, and what its constrained layers became.

    `start` is the start of its constrained weights, None for the base model itself. `alive_share`: what the loss rises
    by when its constrained sublayers are replaced by their means, as a share of what the baseline's rises by.
    `movement_ratio`: how far its constrained weights moved, as a multiple of the baseline's; None where they all
    started at 0. `weights_digest` is of the files of its weights.
    """

    start: str | None
    by: By
    budget: dict[str, JsonValue]
    trials: dict[str, float] = Field(default_factory=dict)
    steps: int
    tokens_trained: int
    best_step: int
    constraint: VerifiedWeights | None
    sublayers: Liveness
    alive_share: float
    movement: Movement
    movement_ratio: float | None
    weights_digest: str

    @property
    def dead(self) -> str:
        """Why the constrained layers count as dead, a clause; empty where they live."""
        if self.alive_share < ALIVE_SHARE:
            return f"replacing them by their mean output costs {self.alive_share:.1%} of what it costs the baseline"
        if (rank := median(self.sublayers.effective_rank.values())) < LEAST_RANK:
            return f"their outputs have collapsed to an effective rank of {rank:.1f} in the median"
        return ""
