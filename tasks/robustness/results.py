"""Results of each stage of the robustness study; fields stand in the order in which they are written.

Names of models are keys: base and the arms; `base@0.5` is what base was after half of its training. For losses on the
test split also unigram, untrained (of a model from scratch) and constrained-untrained (where monotonic starts).
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.attacks.losses import ModelLoss
from tasks.language.result import PackedSplit, SplitSummary, TrainedCheck, Training
from tasks.monotonic.configuration import By, Signs, Start
from tasks.monotonic.result import Certificate, Liveness, Movement, OrderOnText, VerifiedWeights
from tasks.stage.result import Result
from tasks.training.initial import InitialWeights


class SetupResult(Result):
    """setup: what the text holds, and how it was packed; `skipped_rows` by file, of text.skip_bad_rows."""

    splits: dict[str, SplitSummary]
    largest_shared_shingles: float
    duplicates_dropped_documents: int
    contaminated_dropped_documents: int
    vocabulary_tokens: int
    end_of_text_id: int
    tokenizer_digest: str
    packed: dict[str, PackedSplit]
    skipped_rows: dict[str, int] = Field(default_factory=dict)


class BaseResult(Result):
    """base: the model that both arms start from; a model that was loaded has no training."""

    parameters: int
    architecture: str
    source: str
    init_from: InitialWeights | None = None
    training: Training | None
    trained_check: TrainedCheck
    snapshots: dict[str, float]
    weights_digest: str


class ConstrainResult(Result):
    """constrain: the base model with constrained weights, untrained; `signs/` holds the sign that each may have.

    `share_of_weights_changed` is the share of them that the start does not leave at the base model's value.
    """

    variant: str
    signs: Signs
    start: Start
    constraint: VerifiedWeights
    share_of_weights_changed: float
    validation_perplexity_before: float
    validation_perplexity_after: float
    weights_digest: str


class ArmResult(Result):
    """train-baseline, train-monotonic, train-placebo: what one arm spent, and what its constrained layers became.

    `constraint` is None for an arm that was trained without. `snapshots`: share of the training -> validation loss.
    `trials`, where learning rates were tried out: each rate -> the lowest validation loss with it; then `numerics` are
    those of the trials.
    """

    by: By
    training: Training
    constraint: VerifiedWeights | None
    sublayers: Liveness
    movement: Movement
    snapshots: dict[str, float]
    weights_digest: str
    trials: dict[str, float] = Field(default_factory=dict)
    numerics: dict[str, Any] = Field(default_factory=dict)


class EvaluateResult(Result):
    """evaluate: the loss of every model on the test split."""

    split: str
    documents: int
    models: dict[str, ModelLoss]
    records_digest: str


class SearchPoint(Result):
    """How far a search had come after so many forwards: the highest loss until then, on what it searched.

    A backward counts as two forwards (`tasks.attacks.scoring`), so that searches with and without gradients compare.
    """

    forward_sequences: int
    loss_nats_per_token: float


class Restart(Result):
    """One restart of the search for a trigger; the loss is that of all search documents behind the trigger."""

    search_loss_nats_per_token: float
    trigger_ids: list[int]


class Trigger(Result):
    """The trigger that one search found, and what it cost.

    `curve` has a point for every iteration: the increase on the iteration's texts on top of the clean loss of all.
    `budgets`: share of the whole budget -> the trigger that it had led to.
    """

    trigger_ids: list[int]
    trigger_text: str
    trigger_round_trips: bool
    search_loss_clean_nats_per_token: float
    search_loss_nats_per_token: float
    restarts: list[Restart]
    curve: list[SearchPoint]
    budgets: dict[str, list[int]]
    forward_sequences: int
    backward_sequences: int

    def named(self) -> dict[str, list[int]]:
        """The trigger of every restart by its name in the records of transfer: uat for the one that was kept."""
        losses = [restart.search_loss_nats_per_token for restart in self.restarts]
        kept = losses.index(max(losses))
        return {
            "uat" if place == kept else of_restart("uat", place + 1): restart.trigger_ids
            for place, restart in enumerate(self.restarts)
        }


def of_restart(attack: str, number: int) -> str:
    """Name of a restart that was not kept, in the records of transfer; `number` from 1."""
    return f"{attack}, restart {number}"


class Cost(Result):
    """Sequences that went through a model in its gradient search, and in the blind search beside it."""

    forward_sequences: int
    backward_sequences: int
    blind_forward_sequences: int


class UatResult(Result):
    """uat: a universal trigger for one model, found with gradients, and one found by blind search at equal cost.

    The blind search is the query-only attack: it asks for losses and nothing else, and spends
    gradient.forward_sequences + 2 x gradient.backward_sequences forwards, exactly.

    `rank_correlation` is Spearman's, of the gradient's estimate and the exact effect over the candidates that were
    tried, median over the iterations; None where it is not defined.
    """

    model: str
    split: str
    documents: int
    attack: TriggerAttack
    gradient: Trigger
    blind: Trigger
    rank_correlation: float | None
    records_digest: str

    @property
    def cost(self) -> Cost:
        return Cost(
            forward_sequences=self.gradient.forward_sequences,
            backward_sequences=self.gradient.backward_sequences,
            blind_forward_sequences=self.blind.forward_sequences,
        )

    @property
    def curve(self) -> list[SearchPoint]:
        return self.gradient.curve


class HotFlipResult(Result):
    """hotflip: a few tokens of each text replaced, for one model; counts over all texts.

    `curve`: forwards spent on a text -> increase in nats per scored token of all texts, as the gradient search saw it;
    `rank_correlation` and the cost of the blind search as of `UatResult`.
    """

    model: str
    split: str
    documents: int
    attack: FlipAttack
    forward_sequences: int
    backward_sequences: int
    blind_forward_sequences: int
    flips: int
    round_trips: int
    curve: list[SearchPoint]
    rank_correlation: float | None
    records_digest: str

    @property
    def cost(self) -> Cost:
        return Cost(**{name: getattr(self, name) for name in Cost.model_fields})


Transferred = dict[str, dict[str, dict[str, float]]]
"""Search (gradient, blind) -> model that it found something for -> model that this was tried on -> increase of the loss
in nats per token."""


class TransferResult(Result):
    """transfer: what every search found for every model, tried on every model; `uat_on_search` on attack-search."""

    split: str
    uat_on_search: Transferred
    uat: Transferred
    hotflip: Transferred
    records_digest: str


class ModelOrder(Result):
    """Monotonicity of one model's feed-forward sublayers, and how far they keep order on test text."""

    certificate: Certificate
    on_text: OrderOnText


class OrderResult(Result):
    """order: the same questions to every model, at inputs that the first tokens of so many test documents give."""

    split: str
    documents: int
    variant: str
    models: dict[str, ModelOrder]
    records_digest: str
