"""final_results.json of the direction study: every number of its report. Angles are in degrees."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tasks.data.statistics import Column
from tasks.findings.audit import AuditResult
from tasks.findings.provenance import Provenance
from tasks.icecube.configuration import Inputs, Trained
from tasks.icecube.results import Constant, OverfitResult, SplitFacts, TrialResult
from tasks.stage.result import Result
from tasks.training.trials.findings import Ended, Outputs, RateRow

RAW: Inputs = "raw"
NORMALISED: Inputs = "normalised"


class TrialFacts(Result):
    """One trial over its seeds. What stands beside `seeds` is of the worst of them, `seed`.

    `healed`: with every seed it ended at most at healed_ratio of the trivial angle. `learned_seeds`: with so many it
    came below the trivial angle by the margin that a training must have.
    """

    changes: list[str]
    """What it was given otherwise than the training as it was found; nothing: it is the control."""
    trained: Trained
    learning_rate: float
    warmup_ratio: float
    seed: int
    ended: Ended
    validation_angle_degrees: float | None
    step: int
    tensor: str | None
    module: str | None
    event_ids: list[int]
    gradient_norm_max: float
    """Of all seeds."""
    healed: bool
    learned_seeds: int
    seeds: dict[str, TrialResult]
    """Seed -> how the trial ended with it."""

    @property
    def learned_all(self) -> bool:
        return self.learned_seeds == len(self.seeds)

    @property
    def scales_inputs(self) -> bool:
        return self.trained.inputs == NORMALISED or self.trained.batch_norm

    @property
    def angles(self) -> list[float]:
        """Those of the seeds that came to an end, lowest first."""
        found = (one.validation_angle_degrees for one in self.seeds.values() if one.ended == "finished")
        return sorted(angle for angle in found if angle is not None)

    def count(self, ended: Ended) -> int:
        """With how many seeds it ended so."""
        return sum(one.ended == ended for one in self.seeds.values())


class TrainingFacts(Result):
    """The training with normalised inputs, judged on every event of validation."""

    seed: int
    parameters: int
    learning_rate: float
    rate_because: str
    steps: int
    best_step: int
    mean_degrees: float
    median_degrees: float
    ratio_to_trivial: float
    outputs: Outputs
    largest_difference: float
    weights_digest: str


class FinalResults(Result):
    """Everything that the report says, as numbers."""

    study: str
    events: str
    splits: dict[str, SplitFacts]
    trivial: Constant
    inputs: list[Column]
    normalised: dict[str, list[float]]
    scaling: str
    raw_inputs_reason: str
    reason_for_more: str | None
    trials: dict[str, TrialFacts]
    healed_ratio: float
    learned_ratio: float
    rates: dict[Inputs, list[RateRow]]
    rate_steps: int
    recommended: dict[Inputs, float | None]
    recommended_because: dict[Inputs, str]
    overfit: OverfitResult
    training: TrainingFacts
    audit: AuditResult
    numerics_changes: dict[str, Any] = Field(default_factory=dict)
    runs: dict[str, str]
    provenance: dict[str, Provenance]
    configuration: dict[str, Any]

    @property
    def as_found(self) -> TrialFacts | None:
        """The control, if there is one."""
        return next((trial for trial in self.trials.values() if not trial.changes), None)
