"""Contents of `final_results.json` of one seed; fields stand in the order in which they are written.

Names of models are keys, as in `tasks.robustness.results`.
"""

from typing import Any, Self

from pydantic import Field

from tasks.attacks.origins import OF_ATTACKS
from tasks.attacks.results import Findings, PrimaryAnswer, Tested, Transfers
from tasks.findings.final_results import Origins, StudyResults
from tasks.language.losses import LossDifference, ModelLoss, RoundedLoss
from tasks.language.result import SetupResult, SplitsProof, SplitSummary
from tasks.monotonic.numbers import BaseFacts
from tasks.monotonic.result import ArmFacts, ModelOrder
from tasks.stage.result import Result

NOT_KEPT = "of train documents the tokens alone are kept: setup counted them, and what it left out"
ORIGINS = OF_ATTACKS | Origins(
    computed={
        **dict.fromkeys(("rounded.*", "evaluation_precision"), "records of evaluate and stage.json"),
        **dict.fromkeys(("text.*", "text_proof.skipped_rows.*"), "the splits' files"),
        "numerics.*": "stage.json",
    },
    asked={},
    not_asked={
        **dict.fromkeys(("text.train.*", "text_proof.*"), NOT_KEPT),
        "order.*.sublayers.*.worst_violation_found": "one sublayer alone, the worst, keeps the pair that refutes it",
    },
)


class TextProof(Result):
    """Parts left out of the text, and the most that a train document shares with an evaluation split."""

    largest_shared_shingles: float
    duplicates_dropped_documents: int
    contaminated_dropped_documents: int
    skipped_rows: dict[str, int] = Field(default_factory=dict)

    @classmethod
    def of(cls, proof: SplitsProof, setup: SetupResult) -> Self:
        own = {name: getattr(proof, name) for name in cls.model_fields if name in SplitsProof.model_fields}
        return cls(**own, skipped_rows=setup.skipped_rows)


class FinalResults(StudyResults):
    """aggregate: every number of the study, with the runs that they came from (`runs` and `provenance` by stage)."""

    seeds: list[int]
    primary: PrimaryAnswer
    arms: dict[str, ArmFacts]
    models: dict[str, ModelLoss]
    evaluation_precision: str = "fp32"
    rounded: dict[str, RoundedLoss] = Field(default_factory=dict)
    differences: list[LossDifference]
    attacks: dict[str, Findings]
    transfer: Transfers
    order: dict[str, ModelOrder]
    secondary: list[Tested]
    base: BaseFacts
    text: dict[str, SplitSummary]
    text_proof: TextProof
    numerics: dict[str, dict[str, Any]]
    configuration: dict[str, Any]

    def adjusted(self, measure: str, model: str, reference: str) -> float | None:
        """The p-value of a secondary comparison, adjusted for their number; None of what was not tested as one."""
        known = {(row.measure, row.model, row.reference): row.adjusted_p_value for row in self.secondary}
        return known.get((measure, model, reference))

    @property
    def alive_shares(self) -> dict[str, float]:
        return {name: arm.alive_share for name, arm in self.arms.items()}

    @property
    def dead_arms(self) -> list[str]:
        """Arms whose constrained layers do nothing."""
        return [name for name, arm in self.arms.items() if arm.dead]
