"""The keys of the poison study: texts, what is poisoned, the classifier, influence, detection."""

from typing import Literal

from tasks.stage.configuration import Configuration, scientific


class Factors(Configuration):
    """The curvature by which gradients are divided."""

    strategy: Literal["ekfac", "diagonal"] = scientific(
        "ekfac", description="Its form; beside it stands identity, which is none."
    )
    max_degraded_share: float = scientific(
        0.05, ge=0, lt=1, description="Share of modules without full factors above which nothing is ranked."
    )


class Queries(Configuration):
    """What is asked of the model."""

    rows: int = scientific(50, ge=2, description="Test rows that are asked about, in each kind of query.")
    transforms: int = scientific(
        3, ge=2, description="Versions of the triggered queries with half of their other words exchanged."
    )
    damping: float | None = scientific(
        None, gt=0, description="Added to the curvature; empty: a tenth of its mean, module by module."
    )


class Detection(Configuration):
    """Decisions without labels."""

    assumed_share: float = scientific(
        0.1, gt=0, lt=0.5, description="Share of the rows that is taken away: a guess, since nobody knows it."
    )
    percentile: float = scientific(85.0, gt=50, lt=100, description="Scores above this percentile are suspicious.")
