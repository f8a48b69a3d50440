"""What `final_results.json` holds, of one seed and of a sweep; fields stand in the order in which they are written.

Names of models are keys, as in `tasks.robustness.results`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.language.result import SplitSummary, TrainedCheck
from tasks.monotonic.result import VerifiedWeights
from tasks.report.provenance import Provenance
from tasks.robustness.results import Flips, Trigger
from tasks.stage.result import Result
from tasks.statistics.effects import (
    Effect,
    EffectDifference,
    EffectDifferenceWithSuccess,
    EffectWithSuccess,
)
from tasks.statistics.losses import LossDifference, ModelLoss
from tasks.statistics.seeds import MeanOverSeeds
from tasks.training.initial import InitialWeights


class UatFindings(Result):
    """What the triggers did to each model, the differences between models, and what they cost."""

    split: str
    documents: int
    attack: TriggerAttack
    models: dict[str, Trigger]
    effects: dict[str, Effect]
    differences: list[EffectDifference]
    records_digest: str


class FlipsMade(Result):
    """Tokens replaced in a text of one model on average, and texts in which none was."""

    mean: float
    unchanged_documents: int


class HotFlipFindings(Result):
    """What the flips did to each model, the differences between models, and what they cost."""

    split: str
    documents: int
    attack: FlipAttack
    models: dict[str, Flips]
    effects: dict[str, EffectWithSuccess]
    differences: list[EffectDifferenceWithSuccess]
    records_digest: str
    flips: dict[str, FlipsMade]
    round_trips_documents: dict[str, int]


Findings = UatFindings | HotFlipFindings


class Attacks(Result):
    """Both attacks."""

    uat: UatFindings
    hotflip: HotFlipFindings

    def by_name(self) -> dict[str, Findings]:
        return {"uat": self.uat, "hotflip": self.hotflip}


class Arm(Result):
    """What one arm spent, and what came of it; `start` is the stage that it starts from."""

    start: Literal["base", "constrain"]
    budget: dict[str, Any]
    steps: int
    tokens_trained: int
    best_step: int
    weights_digest: str


class Arms(Result):
    """Both arms."""

    baseline: Arm
    monotonic: Arm

    def by_name(self) -> dict[str, Arm]:
        return {"baseline": self.baseline, "monotonic": self.monotonic}


class BaseFacts(Result):
    """What the report says of the base model; `init_from` only where it began with the weights of another run."""

    architecture: str
    parameters: int
    source: str
    trained_check: TrainedCheck
    init_from: InitialWeights | None = None


class TextProof(Result):
    """What was dropped from the text, and the most that a train document shares with an evaluation split."""

    largest_shared_shingles: float
    duplicates_dropped_documents: int
    contaminated_dropped_documents: int


class ArmNumerics(Result):
    """The numerics of both arms."""

    baseline: dict[str, Any]
    monotonic: dict[str, Any]


class FinalResults(Result):
    """aggregate: every number of the study, with the runs that they came from (`runs` and `provenance` by stage)."""

    study: str
    seeds: list[int]
    models: dict[str, ModelLoss]
    differences: list[LossDifference]
    attacks: Attacks
    arms: Arms
    unequal_budgets_reason: str | None
    constraint: VerifiedWeights
    share_of_signs_changed: float
    base: BaseFacts
    text: dict[str, SplitSummary]
    text_proof: TextProof
    numerics_changes: dict[str, list[dict[str, Any]]]
    numerics: ArmNumerics
    runs: dict[str, str]
    provenance: dict[str, Provenance]
    configuration: dict[str, Any]


class MeanEffects(Result):
    """Differences of an attack's effects, mean over seeds."""

    increase_nats_per_token: MeanOverSeeds
    attack_minus_control_nats_per_token: MeanOverSeeds
    relative_increase: MeanOverSeeds


class MeanEffectsWithSuccess(MeanEffects):
    """The same of an attack that succeeds or fails on each text."""

    success_rate: MeanOverSeeds


class MeanLosses(Result):
    """Loss of both arms on the test split, mean over seeds."""

    baseline: MeanOverSeeds
    monotonic: MeanOverSeeds


class MeanAttacks(Result):
    """The effect on monotonic minus that on baseline, for both attacks."""

    uat: MeanEffects
    hotflip: MeanEffectsWithSuccess


class SweepResults(Result):
    """sweep over seeds: the arms compared; the results of each seed by the name of its cell, and the missing cells."""

    study: str
    seeds: list[int]
    loss_nats_per_token: MeanLosses
    monotonic_minus_baseline_nats_per_token: MeanOverSeeds
    attacks_monotonic_minus_baseline: MeanAttacks
    of_seed: dict[str, FinalResults]
    runs: dict[str, str]
    missing: list[str] = Field(default_factory=list)
