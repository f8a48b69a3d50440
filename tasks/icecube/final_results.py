"""final_results.json of the direction study: every number of its report. Angles are in degrees."""

from __future__ import annotations

from tasks.findings.final_results import StudyResults
from tasks.icecube.configuration import Inputs, Trained
from tasks.icecube.results import Constant, LookResult, OverfitResult, PulsesResult, TrainResult, TrialResult
from tasks.stage.result import Result
from tasks.training.trials.findings import Ended, RateRow

RAW: Inputs = "raw"
NORMALISED: Inputs = "normalised"


class TrialFacts(Result):
    """One trial over its seeds; from `seed` to `event_ids` the worst of them.

    `changes`: what it was given otherwise than the training as it was found; the control nothing. `healed`: with every
    seed it ended at most at healed_ratio of the trivial angle. `learned_seeds`: with so many it came below the trivial
    angle by the margin that a training must have. `gradient_norm_max` is of all seeds.
    """

    changes: list[str]
    seed: int
    ended: Ended
    validation_angle_degrees: float | None
    step: int
    tensor: str | None
    event_ids: list[int]
    gradient_norm_max: float
    healed: bool
    learned_seeds: int
    seeds: dict[str, TrialResult]

    @property
    def worst(self) -> TrialResult:
        return self.seeds[str(self.seed)]

    @property
    def trained(self) -> Trained:
        return self.worst.trained

    @property
    def learned_all(self) -> bool:
        return self.learned_seeds == len(self.seeds)

    @property
    def scales_inputs(self) -> bool:
        return self.trained.inputs == NORMALISED or self.trained.batch_norm

    @property
    def angles(self) -> list[float]:
        """Angles of the seeds that came to an end, lowest first."""
        ends = (trial.validation_angle_degrees for trial in self.seeds.values() if trial.ended == "finished")
        return sorted(angle for angle in ends if angle is not None)

    def count(self, ended: Ended) -> int:
        """With how many seeds it ended so."""
        return sum(trial.ended == ended for trial in self.seeds.values())


class FinalResults(StudyResults):
    """Everything that the report says, as numbers: the stages' results, and what follows from them."""

    events: PulsesResult
    look: LookResult
    trivial: Constant
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
    seed: int
    training: TrainResult

    @property
    def trivial_degrees(self) -> float:
        return self.trivial.best_constant_degrees

    @property
    def control(self) -> TrialFacts | None:
        """The training as it was found, if it is a trial."""
        return next((trial for trial in self.trials.values() if not trial.changes), None)
