"""Contents of `final_results.json`, of one seed and of a sweep; fields stand in the order in which they are written.

Names of models are keys, as in `tasks.robustness.results`.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tasks.attacks.configuration import FlipAttack, Primary, TriggerAttack
from tasks.attacks.effects import Effect, EffectDifference
from tasks.attacks.losses import LossDifference, ModelLoss
from tasks.attacks.matched import MatchedDifference
from tasks.findings.audit import AuditResult
from tasks.findings.provenance import Provenance, run_name
from tasks.findings.statistics.equivalence import Answer
from tasks.findings.statistics.resampling import Estimate
from tasks.findings.statistics.seeds import MeanOverSeeds, OverSeeds
from tasks.findings.sweep.results import SweepResults
from tasks.language.result import SplitSummary, TrainedCheck
from tasks.monotonic.configuration import By
from tasks.monotonic.result import Liveness, Movement, VerifiedWeights
from tasks.robustness.arm import ALIVE_SHARE
from tasks.robustness.results import Cost, OrderResult, SearchPoint, TransferResult, Trigger
from tasks.stage.result import Result
from tasks.training.initial import InitialWeights

ATTACKS = ("uat", "hotflip")


class FlipsMade(Result):
    """Tokens replaced in a text of one model on average, and texts in which none was."""

    mean: float
    unchanged_documents: int


class Findings(Result):
    """Effect of one attack on each model, the differences between models, and its cost.

    Effects are those of the strongest attack on the model; `attacked_by`: for whom it was found -> documents;
    differences are means over the searches, by the strongest attack of each; `at_equal_loss_alone`: by the gradient
    search on each model alone. Triggers are those of uat; flips, and texts that come back as the same tokens, of
    hotflip.
    """

    split: str
    documents: int
    attack: TriggerAttack | FlipAttack
    attacked_by: dict[str, dict[str, int]]
    effects: dict[str, Effect]
    differences: list[EffectDifference]
    at_equal_loss: list[MatchedDifference]
    at_equal_loss_alone: list[MatchedDifference]
    rank_correlation: dict[str, float | None]
    costs: dict[str, Cost]
    curves: dict[str, list[SearchPoint]]
    records_digests: dict[str, str]
    triggers: dict[str, Trigger] = Field(default_factory=dict)
    blind_triggers: dict[str, Trigger] = Field(default_factory=dict)
    flips: dict[str, FlipsMade] = Field(default_factory=dict)
    round_trips_documents: dict[str, int] = Field(default_factory=dict)

    @property
    def one_for_all(self) -> bool:
        """True where one trigger attacks all texts, so that there are several searches; else each text has its own."""
        return isinstance(self.attack, TriggerAttack)

    @property
    def searches(self) -> int:
        return self.attack.restarts if isinstance(self.attack, TriggerAttack) else 1

    def difference(self, model: str, reference: str) -> EffectDifference:
        return next(row for row in self.differences if (row.model, row.reference) == (model, reference))

    @property
    def beaten_by_blind_search(self) -> list[str]:
        """Models on which the gradient search found no more than blind search at equal cost."""
        return [model for model, effect in self.effects.items() if effect.search_minus_blind_nats_per_token.value <= 0]


class ArmFacts(Result):
    """Cost of one arm, and what its constrained layers became.

    `start` is the start of its constrained weights, None for the base model itself. `alive_share`: what the loss rises
    by when its constrained sublayers are replaced by their means, as a share of what the baseline's rises by.
    `movement_ratio`: how far its constrained weights moved, as a multiple of the baseline's; None where they all
    started at 0.
    """

    start: str | None
    by: By
    budget: dict[str, Any]
    steps: int
    tokens_trained: int
    best_step: int
    constraint: VerifiedWeights | None
    sublayers: Liveness
    alive_share: float
    movement: Movement
    movement_ratio: float | None
    weights_digest: str


class PrimaryAnswer(Result):
    """The answer to the study's question, or why there is none: of one study, or over the cells of a sweep.

    `difference` is that of the primary measure, monotonic - baseline; `from_placebos` against each placebo whose
    constrained layers live, `control` of the positive control from baseline (None: no arm is one, or it is not known);
    `by_fewer_attacks`, of one study, the same difference under less than all that was found, which shows how far it
    hangs on what the other arms found. It is judged on `documents` of `sources`. Over cells, the interval and the
    p-value know of seeds and sources together.
    """

    primary: Primary
    documents: int
    sources: int
    difference: OverSeeds | Estimate | None
    answer: Answer | None
    unanswered: str | None
    from_placebos: dict[str, OverSeeds | Estimate]
    control: OverSeeds | Estimate | None = None
    by_fewer_attacks: dict[str, OverSeeds | Estimate | None] = Field(default_factory=dict)


class Tested(Result):
    """A secondary comparison of two models: its p-value, and the same adjusted for their number (Holm 1979)."""

    measure: str
    model: str
    reference: str
    p_value: float
    adjusted_p_value: float


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
        return [name for name, share in self.alive_shares.items() if share < ALIVE_SHARE]


class RobustnessSweepResults(SweepResults):
    """sweep over seeds: the arms compared, beside what every sweep has.

    Differences are those of an arm (key) from baseline, mean over seeds; `equal_loss_differences` from the
    unconstrained model at the arm's clean loss; `primary_in_other_ways` by fewer attacks, and at equal clean loss. What
    a cell does not know is missing there.
    """

    alive_share: dict[str, MeanOverSeeds]
    loss_differences: dict[str, MeanOverSeeds]
    increase_differences: dict[str, dict[str, OverSeeds]]
    equal_loss_differences: dict[str, dict[str, MeanOverSeeds]]
    primary: PrimaryAnswer
    primary_in_other_ways: dict[str, Estimate]
