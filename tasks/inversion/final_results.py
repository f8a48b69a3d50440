"""final_results.json of the inversion study: every number of its report. Errors are mean squares over entries."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tasks.findings.audit import AuditResult
from tasks.findings.provenance import Provenance
from tasks.findings.statistics.comparison import ArmMean, Comparison
from tasks.inversion.configuration import Mining
from tasks.inversion.results import PilotResult, ProbeResult, SplitFacts, Trivial
from tasks.stage.result import Result


class ArmFacts(ArmMean):
    """The validation error of an arm over seeds, of the best step of each; by seed also the last step's.

    `learned`: with every seed it is below `learned_ratio` of the better trivial error. `descent_difference` is the
    largest of its seeds, None for an arm without a descent; `descent_defect` names on what that descent depends.
    `clipped_share` of the steps had a gradient that was clipped, the longest of all was `largest_gradient_norm`.
    """

    mining: Mining
    learned: bool
    out_of_distribution: ArmMean
    last: dict[str, float]
    best_step: dict[str, int]
    last_step: dict[str, int]
    validations: dict[str, list[list[float]]]
    """Seed -> [step, error] of each validation."""
    clipped_share: dict[str, float]
    largest_gradient_norm: dict[str, float]
    descent_difference: float | None
    descent_defect: str

    @property
    def late_divergence(self) -> float:
        """The last step's error as a multiple of the best one's, at most over seeds."""
        return max(self.last[seed] / value for seed, value in self.values.items())


class EarlyStop(Result):
    """What an arm would have kept, had it ended after `patience` validations without a new best: means over seeds."""

    arm: str
    patience: int
    step: float
    error: float
    whole_error: float


class DescentPart(Result):
    """How much of what an arm with the published descent differs from the reference by is due to that descent.

    In per cent of the mean of the reference: `whole` with the published descent, `corrected` with the other one; their
    difference is the descent's. `shown`: whether the seeds show it.
    """

    published: str
    corrected: str
    whole: float
    without: float
    shown: bool

    @property
    def descent(self) -> float:
        return self.whole - self.without


class Probes(Result):
    """What was looked at in trained networks."""

    conditioning: ProbeResult


class FinalResults(Result):
    """Everything that the report says, as numbers."""

    study: str
    rank: int
    splits: dict[str, SplitFacts]
    trivial: Trivial
    trivial_out_of_distribution: Trivial
    pilot: PilotResult
    reference: str
    seeds: list[int]
    arms: dict[str, ArmFacts]
    differences: list[Comparison]
    out_of_distribution: list[Comparison]
    descent_parts: list[DescentPart]
    early_stops: list[EarlyStop]
    confidence_level: float
    min_seeds: int
    learned_ratio: float
    largest_difference: float
    """Between predictions of a matrix however it comes, over all cells; in fp64."""
    probes: Probes
    audit: AuditResult
    numerics_changes: dict[str, Any] = Field(default_factory=dict)
    runs: dict[str, str]
    provenance: dict[str, Provenance]
    configuration: dict[str, Any]
