"""final_results.json of the inversion study: every number of its report. Errors are mean squares over entries."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.findings.statistics.comparison import ArmMean, Comparison
from tasks.findings.trainings import ArmsResults, TrainedArm
from tasks.inversion.configuration import Mining
from tasks.inversion.results import PilotResult, ProbeResult, SplitFacts, Trivial
from tasks.stage.result import Result


class ArmFacts(TrainedArm):
    """The validation error of an arm over seeds, and its error on harder matrices.

    `descent_difference` is the largest of its seeds, None for an arm without a descent; `descent_defect` names on what
    that descent depends.
    """

    mining: Mining
    out_of_distribution: ArmMean
    descent_difference: float | None
    descent_defect: str


class EarlyStop(Result):
    """The error of an arm that ends after `patience` validations without a new best: means over seeds."""

    arm: str
    patience: int
    step: float
    error: float
    whole_error: float


class DescentPart(Result):
    """The part of an arm's difference from the reference that is due to its published descent.

    In per cent of the mean of the reference: `whole` with the published descent, `without` it, with the corrected one.
    `shown`: whether the seeds show the difference of both.
    """

    published: str
    corrected: str
    whole: float
    without: float
    shown: bool

    @property
    def descent(self) -> float:
        return self.whole - self.without


class FinalResults(ArmsResults):
    """Everything that the report says, as numbers.

    `largest_difference`: between predictions of a matrix however it comes, over all trainings; in fp64.
    """

    rank: int
    splits: dict[str, SplitFacts]
    trivial: Trivial
    pilot: PilotResult
    arms: Mapping[str, ArmFacts]
    out_of_distribution: list[Comparison]
    descent_parts: list[DescentPart]
    early_stops: list[EarlyStop]
    largest_difference: float
    probes: dict[str, ProbeResult]

    @property
    def together(self) -> int:
        return len(self.differences) + len(self.out_of_distribution)

    @property
    def mined_first(self) -> list[str]:
        """The arms, those with mined negatives before the others: they are what is asked about."""
        return sorted(self.arms, key=lambda name: not self.arms[name].mining.uses_descent)

    @property
    def against_reference(self) -> list[Comparison]:
        """The comparisons that answer: of arms with mined negatives, where there are any."""
        every = [comparison for comparison in self.differences if comparison.reference == self.reference]
        return [comparison for comparison in every if self.arms[comparison.arm].mining.uses_descent] or every
