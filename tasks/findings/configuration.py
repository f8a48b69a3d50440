"""A person's choices for the audit before a report, and for how results are summarised."""

from __future__ import annotations

from typing import ClassVar

from tasks.stage.configuration import Configuration, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration


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


class ArmsConfig(StageConfiguration):
    """report: arms of a study of one's own side by side."""

    numerics: ClassVar = Numerics(torch=False)

    metric: str = scientific(description="Name of the number, as in the results of the arms.")
    arms: dict[str, list[str]] = scientific(description="Each arm, and what its stages are: `0`, `1`, `2`.")
    varied: str = scientific("seed", description="What differs between the stages of an arm, such as `fold`.")
    compare: list[str] = scientific([], max_length=2, description="An arm and its reference; none: all with the first.")
    higher_is_better: bool | None = scientific(None, description="None: as the arms' trainings say.")
    question: str = scientific("", description="What the report answers.")
    confidence_level: float = scientific(0.95, gt=0, lt=1, description="Of the intervals.")

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Each arm with its reference."""
        first, *others = self.arms
        return [(self.compare[0], self.compare[1])] if self.compare else [(other, first) for other in others]


def role_of(arm: str, varied: str, value: str) -> str:
    """How the stage of an arm is called as an input."""
    return f"{arm}, {varied} {value}"
