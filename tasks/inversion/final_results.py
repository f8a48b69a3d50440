"""final_results.json of the inversion study: every number of its report. Errors are mean squares over entries."""

from collections.abc import Mapping

from tasks.findings.final_results import Origins
from tasks.findings.statistics.comparison import ArmMean, Comparison
from tasks.findings.trainings import ArmsResults, TrainedArm
from tasks.inversion.configuration import Mining
from tasks.inversion.results import NegativeFacts, ProbeResult, SplitFacts, Trivial
from tasks.stage.result import Result

ORIGINS = Origins(
    computed={
        **dict.fromkeys(("reference", "seeds.*", "rank", "min_seeds", "probed_matrices"), "stage.json"),
        **dict.fromkeys(("arms.*.mining.*", "confidence_level", "learned_ratio"), "stage.json"),
        "arms.*": "errors of the records",
        **dict.fromkeys(("differences.*", "out_of_distribution.*", "descent_parts.*"), "errors of the records"),
        **dict.fromkeys(("early_stops.*.arm", "early_stops.*.patience"), "stage.json"),
        "pilot.required_mse": "stage.json and what needs no learning",
    },
    asked={
        **dict.fromkeys(("arms.*.values.*", "arms.*.out_of_distribution.values.*"), "errors"),
        **dict.fromkeys(("arms.*.descent_*",), "dependence on how a matrix comes"),
        **dict.fromkeys(("splits.*", "trivial.*"), "facts of the fixed matrices"),
        "probe.*": "facts of negatives",
    },
    not_asked={
        "arms.*.cells.*": "metrics.jsonl alone tells the course of a training: its best and last step, validations on "
        "the way, gradients",
        **dict.fromkeys(("early_stops.*.step", "early_stops.*error"), "they follow from the course of trainings"),
        **dict.fromkeys(("pilot.validation_mse", "gates.0.measured"), "no model of the pilot is kept"),
    },
)


class PilotFacts(Result):
    """The best error of the pilot, and the one that it must reach."""

    validation_mse: float
    required_mse: float


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

    @property
    def share(self) -> float | None:
        """Per cent of the whole that the descent makes, where the seeds show it and it is a part."""
        part = self.descent / self.whole if self.shown and self.whole else 0.0
        return 100 * part if 0 < part <= 1 else None


class FinalResults(ArmsResults):
    """Everything that the report says, as numbers."""

    rank: int
    splits: dict[str, SplitFacts]
    trivial: Trivial
    pilot: PilotFacts
    arms: Mapping[str, ArmFacts]
    out_of_distribution: list[Comparison]
    descent_parts: list[DescentPart]
    early_stops: list[EarlyStop]
    probe: ProbeResult
    probed_matrices: int

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

    @property
    def other_than_descents(self) -> list[Comparison]:
        parts = {(part.published, part.corrected) for part in self.descent_parts}
        return [difference for difference in self.differences if (difference.arm, difference.reference) not in parts]

    @property
    def extreme_negatives(self) -> tuple[NegativeFacts, NegativeFacts, NegativeFacts, NegativeFacts]:
        """Those nearest to singular, most often false, most often below the truth, and most alike, of as many steps as
        the arm was trained with."""
        minings, every = {name: arm.mining for name, arm in self.arms.items()}, self.probe.negatives
        as_trained = [facts for facts in every if facts.descent_steps == minings[facts.arm].descent_steps]
        mined = [facts for facts in as_trained if minings[facts.arm].uses_descent] or as_trained or every
        return (
            max(mined, key=lambda facts: facts.condition / facts.true_condition),
            max(mined, key=lambda facts: facts.false_share),
            max(mined, key=lambda facts: facts.below_share),
            min(mined, key=lambda facts: facts.spread),
        )
