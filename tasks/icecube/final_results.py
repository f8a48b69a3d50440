"""final_results.json of the direction study: every number of its report. Angles are in degrees."""

from typing import Literal

from tasks.data.statistics import Column
from tasks.findings.final_results import Origins, StudyResults
from tasks.icecube.configuration import Inputs, Scaling, Split, Trained
from tasks.icecube.results import Constant, SplitFacts
from tasks.stage.result import Result
from tasks.training.trained import Trained as Course
from tasks.training.trials.findings import Ended, Failure, Outputs, RateRow

RAW: Inputs = "raw"
NORMALISED: Inputs = "normalised"
LEARNED_RATIO = 0.9
"""A network that ends above this share of the trivial angle has learned nothing that chance would not show."""

SCALING = (["inputs"], ["batch_norm"])
"""Changes of a trial that scale its inputs, and change nothing else."""

OF_COURSES = "metrics.jsonl alone tells the course of a training: its steps, validations on the way, gradients"
OF_ONE_BATCH = "no weights of the one batch are kept"
OF_RATES = "no weights of the short tries are kept"
ORIGINS = Origins(
    computed={
        **dict.fromkeys(("source", "scaling", "raw_inputs_reason", "reason_for_more", "seed"), "stage.json"),
        **dict.fromkeys(("healed_ratio", "learned_ratio", "rate_steps", "overfit.events"), "stage.json"),
        **dict.fromkeys(("trials.*.changes.*", "trials.*.seed"), "stage.json"),
        "trials.*": "stage.json, records and how the trial ended",
        **dict.fromkeys(("training.learning_rate", "training.rate_because"), "stage.json, or the table of rates"),
    },
    asked={
        **dict.fromkeys(("splits.*",), "events and pulses of files"),
        **dict.fromkeys(("training.mean_degrees", "training.median_degrees"), "angles"),
        **dict.fromkeys(("trials.*.validation_angle_degrees", "trials.*.healed"), "angles"),
        **dict.fromkeys(("trials.*.ended", "trials.*.learned_seeds"), "failures"),
        "trivial.*": "trivial angle",
        **dict.fromkeys(("training.outputs.*", "training.largest_difference"), "outputs of the training"),
    },
    not_asked={
        **dict.fromkeys(("columns.*", "normalised.*", "gates.1.*"), "they take every pulse of train, read once more"),
        **dict.fromkeys(("rates.*", "recommended.*", "recommended_because.*"), OF_RATES),
        **dict.fromkeys(("overfit.after", "overfit.required_degrees", "gates.0.*"), OF_ONE_BATCH),
        **dict.fromkeys(("training.course.*", "trials.*.gradient_norm_max", "trials.*.validations.*"), OF_COURSES),
        "trials.*.failure.*": "where it begins depends on the processor: `ratchet replay` makes the step again",
    },
)


class TrialSeed(Result):
    """One training of a trial. `validation_angle_degrees` is its last validation, None where it failed; a `failure` has
    the ids of its events as examples."""

    trained: Trained
    learning_rate: float
    warmup_ratio: float
    seed: int
    ended: Ended
    validation_angle_degrees: float | None
    failure: Failure | None
    gradient_norm_max: float
    validations: list[list[float]]


class TrialFacts(Result):
    """One trial over its seeds; `seed` and `validation_angle_degrees` are of the worst of them.

    `changes`: what it was given otherwise than the training as it was found; the control nothing. `healed`: with every
    seed it ended at most at healed_ratio of the trivial angle. `learned_seeds`: with so many it came below the trivial
    angle by the margin that a training must have.
    """

    changes: list[str]
    seed: int
    validation_angle_degrees: float | None
    healed: bool
    learned_seeds: int
    seeds: dict[str, TrialSeed]

    @property
    def worst(self) -> TrialSeed:
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


class BatchFacts(Result):
    """The one batch that was fitted: the mean angle on it at the end, and that which was required."""

    events: int
    after: float
    required_degrees: float


class Training(Result):
    """The training. `rate_because` says why the rate was taken; `largest_difference` as of `TrainResult`."""

    learning_rate: float
    rate_because: str
    mean_degrees: float
    median_degrees: float
    outputs: Outputs
    largest_difference: float
    course: Course


class FinalResults(StudyResults):
    """Everything that the report says, as numbers. `normalised`: the lowest and the highest value of each column."""

    source: Literal["generated", "files"]
    splits: dict[Split, SplitFacts]
    columns: list[Column]
    normalised: dict[str, list[float]]
    scaling: Scaling
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
    overfit: BatchFacts
    seed: int
    training: Training

    @property
    def trivial_degrees(self) -> float:
        return self.trivial.best_constant_degrees

    @property
    def control(self) -> TrialFacts | None:
        """The training as it was found, if it is a trial."""
        return next((trial for trial in self.trials.values() if not trial.changes), None)

    @property
    def seeds(self) -> list[str]:
        """Those of every trial."""
        return [*next(iter(self.trials.values())).seeds]

    @property
    def healed(self) -> dict[str, TrialFacts]:
        return {name: trial for name, trial in self.trials.items() if trial.healed}

    def not_healed(self, scaled: bool) -> dict[str, TrialFacts]:
        """The trials but the one as found, on scaled inputs or on raw ones."""
        rest = (item for item in self.trials.items() if not item[1].healed and item[1] is not self.control)
        return {name: trial for name, trial in rest if trial.scales_inputs == scaled}

    @property
    def bundles(self) -> list[str]:
        return [name for name, trial in self.trials.items() if len(trial.changes) > 1]

    @property
    def raw(self) -> dict[str, TrialFacts]:
        """The trials on raw inputs but the one as found."""
        others = (item for item in self.trials.items() if item[1] is not self.control)
        return {name: trial for name, trial in others if not trial.scales_inputs}

    @property
    def learned_raw(self) -> dict[str, TrialFacts]:
        """The trials on raw inputs that learned with every seed."""
        return {name: trial for name, trial in self.raw.items() if trial.learned_all}

    @property
    def scaling_heals(self) -> bool:
        """Scaling the inputs heals, and nothing else does, each trial against the one as found."""
        alone = [trial for trial in self.trials.values() if trial.changes in SCALING]
        known = bool(self.control and alone and self.raw)
        return known and all(trial.healed for trial in alone) and not self.raw.keys() & self.healed.keys()
