"""A person's choices for the audit before a report, and for how results are summarised."""

from __future__ import annotations

from tasks.stage.configuration import Configuration, scientific


class Audit(Configuration):
    """The audit: how much is computed again."""

    examples: int = scientific(
        2,
        ge=1,
        description="Examples of each split, drawn by the seed, of which every recorded number is computed again.",
    )


class Evaluation(Configuration):
    """The summary of results."""

    bootstrap_resamples: int = scientific(2000, ge=100, description="Resamples of the paired bootstrap.")
    confidence_level: float = scientific(0.95, gt=0.5, lt=1, description="Confidence level of every interval.")
