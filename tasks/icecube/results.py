"""Results of each stage of the direction study. Angles are in degrees, losses in radians."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tasks.data.statistics import Column
from tasks.icecube.configuration import RateLimits, Trained
from tasks.stage.result import Result
from tasks.training.trials.findings import Ended, Outputs, RateRow, Recommendation, SingleBatchFit, recommended


class SplitFacts(Result):
    """The files and events of a split, and the pulses in its files; `skipped`: what was wrong with which events."""

    batches: list[int]
    events: int
    pulses: int
    skipped: dict[str, list[int]] = Field(default_factory=dict)

    @property
    def left_out(self) -> list[int]:
        return [event_id for ids in self.skipped.values() for event_id in ids]


class PulsesResult(Result):
    """icecube-pulses. `files` has the sha256 of each file that was not written by the study, by its name."""

    source: str
    sensors: int
    train: SplitFacts
    validation: SplitFacts
    files: dict[str, str] = Field(default_factory=dict)
    records_digest: str


CONSTANT = "best constant direction"


class Constant(Result):
    """The one direction that is nearest to those of validation: what a method without learning gets at best."""

    azimuth_degrees: float
    zenith_degrees: float
    best_constant_degrees: float


class LookResult(Result):
    """icecube-look. `columns` are of the pulses of train as the network gets them, raw; `events` of train were read.

    `normalised` has the lowest and the highest value of each column after normalising.
    """

    events: int
    columns: list[Column]
    normalised: dict[str, list[float]]
    scaling: str
    normaliser_digest: str
    trivial: Constant


class RatesResult(Result):
    """icecube-rates. Changes are those of the mean angle on the probe, in degrees: below 0 is a gain."""

    inputs: str
    steps: int
    probe_events: int
    rows: list[RateRow]
    records_digest: str

    def recommended(self, limits: RateLimits) -> Recommendation:
        """The rate to take, or why there is none."""
        return recommended(self.rows, limits.max_gradient_norm, limits.min_gain_degrees)


class OverfitResult(Result):
    """icecube-overfit."""

    fit: SingleBatchFit
    trivial_degrees: float
    required_degrees: float


class TrialResult(Result):
    """icecube-trial. `validation_angle_degrees` is its last validation, None where there was none.

    `event_ids` are those whose loss or gradient was not finite (`together`: alone each is), `module` where that began;
    `of_events` were in the step, 0 where it was not found out and `event_ids` are all of it.
    """

    trained: Trained
    learning_rate: float
    warmup_ratio: float
    seed: int
    ended: Ended
    step: int
    steps_of_budget: int
    validation_angle_degrees: float | None
    tensor: str | None = None
    module: str | None = None
    event_ids: list[int] = Field(default_factory=list)
    together: bool = False
    of_events: int = 0
    gradient_norm_max: float
    validations: list[list[float]]


class TrainResult(Result):
    """icecube-train. `rate_because` says why the rate was taken."""

    parameters: int
    learning_rate: float
    rate_because: str
    training: dict[str, Any]
    mean_degrees: float
    median_degrees: float
    outputs: Outputs
    largest_difference: float
    """Between predictions of one event alone, among others, padded, in chunks; of a component of a unit vector."""
    normaliser_digest: str
    weights_digest: str
    records_digest: str
