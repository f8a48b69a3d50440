"""How results are summarised."""

from __future__ import annotations

from tasks.stage.configuration import Configuration, scientific


class Evaluation(Configuration):
    """How results are summarised."""

    bootstrap_resamples: int = scientific(2000, ge=100, description="Resamples of the paired bootstrap.")
    confidence_level: float = scientific(0.95, gt=0.5, lt=1, description="Confidence level of every interval.")
