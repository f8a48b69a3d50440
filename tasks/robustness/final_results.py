"""Contents of `final_results.json` of one seed; fields stand in the order in which they are written.

Names of models are keys, as in `tasks.robustness.results`.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tasks.attacks.results import Findings, PrimaryAnswer, Tested, TransferResult
from tasks.findings.audit import AuditResult
from tasks.findings.provenance import Provenance, run_name
from tasks.language.losses import LossDifference, ModelLoss, RoundedLoss
from tasks.language.result import SplitSummary, TrainedCheck
from tasks.monotonic.result import ArmFacts, OrderResult
from tasks.stage.result import Result
from tasks.training.initial import InitialWeights


class BaseFacts(Result):
    """Facts of the report on the base model; `init_from` only where it began with the weights of another run."""

    architecture: str
    parameters: int
    source: str
    trained_check: TrainedCheck
    init_from: InitialWeights | None = None


class TextProof(Result):
    """Parts left out of the text, and the most that a train document shares with an evaluation split."""

    largest_shared_shingles: float
    duplicates_dropped_documents: int
    contaminated_dropped_documents: int
    skipped_rows: dict[str, int] = Field(default_factory=dict)


class FinalResults(Result):
    """aggregate: every number of the study, with the runs that they came from (`runs` and `provenance` by stage)."""

    study: str
    seeds: list[int]
    primary: PrimaryAnswer
    arms: dict[str, ArmFacts]
    models: dict[str, ModelLoss]
    evaluation_precision: str = "fp32"
    rounded: dict[str, RoundedLoss] = Field(default_factory=dict)
    differences: list[LossDifference]
    attacks: dict[str, Findings]
    transfer: TransferResult
    order: OrderResult
    audit: AuditResult
    secondary: list[Tested]
    base: BaseFacts
    text: dict[str, SplitSummary]
    text_proof: TextProof
    numerics_changes: dict[str, list[dict[str, Any]]]
    numerics: dict[str, dict[str, Any]]
    runs: dict[str, str]
    provenance: dict[str, Provenance]
    configuration: dict[str, Any]

    def run(self, stage: str) -> str:
        """The name of the run directory of a stage: the last cell of every row of its numbers."""
        return run_name(self.runs[stage])

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
