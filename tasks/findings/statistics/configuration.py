"""How results are summarised, and which of them answers the question."""

from __future__ import annotations

from typing import Literal

from tasks.stage.configuration import Configuration, scientific


class Evaluation(Configuration):
    """How results are summarised."""

    bootstrap_resamples: int = scientific(2000, ge=100, description="Resamples of the paired bootstrap.")
    confidence_level: float = scientific(0.95, gt=0.5, lt=1, description="Confidence level of every interval.")


class Primary(Configuration):
    """The one comparison, named before the study runs, that answers its question; all others are secondary."""

    attack: Literal["uat", "hotflip"] = scientific("hotflip", description="The attack that decides.")
    measure: Literal["increase", "increase_at_equal_loss"] = scientific(
        "increase",
        description="What monotonic and baseline are compared by, in nats per token. increase: what the attack adds to "
        "the loss; increase_at_equal_loss: the same, against the baseline at the clean loss of the monotonic arm "
        "(needs snapshots).",
    )
    margin_nats_per_token: float = scientific(
        0.02,
        gt=0,
        description="A difference smaller than this counts as none: equivalent within the margin. As a difference of "
        "losses it is a factor of the perplexity under attack (0.02: 2 %); reports say what share it is of what the "
        "attack adds.",
    )
