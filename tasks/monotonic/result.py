"""What was read from the constrained layers of a model."""

from __future__ import annotations

from tasks.stage.result import Result


class VerifiedWeights(Result):
    """The effective weights of every layer that a variant names, all finite and >= 0."""

    variant: str
    layers_checked: int
    layers: list[str]
    weights_checked: int
    min_weight: float
    max_weight: float
