"""What each stage of the robustness study returns; fields stand in the order in which they are written.

Names of models are keys: base, baseline and monotonic, and for losses on the test split also unigram, untrained (of a
model from scratch) and constrained-untrained.
"""

from __future__ import annotations

from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.language.result import PackedSplit, SplitSummary, TrainedCheck, Training
from tasks.monotonic.result import VerifiedWeights
from tasks.stage.result import Result
from tasks.statistics.losses import ModelLoss
from tasks.training.initial import InitialWeights


class SetupResult(Result):
    """setup: what the text holds, and how it was packed."""

    splits: dict[str, SplitSummary]
    largest_shared_shingles: float
    duplicates_dropped_documents: int
    contaminated_dropped_documents: int
    vocabulary_tokens: int
    end_of_text_id: int
    tokenizer_digest: str
    packed: dict[str, PackedSplit]


class BaseResult(Result):
    """base: the model that both arms start from; a model that was loaded has no training."""

    parameters: int
    architecture: str
    source: str
    init_from: InitialWeights | None = None
    training: Training | None
    trained_check: TrainedCheck
    weights_digest: str


class ConstrainResult(Result):
    """constrain: the base model with non-negative weights, untrained."""

    variant: str
    constraint: VerifiedWeights
    share_of_signs_changed: float
    max_difference_from_absolute_weight: float
    validation_perplexity_before: float
    validation_perplexity_after: float
    weights_digest: str


class BaselineResult(Result):
    """train-baseline: the base model, trained further."""

    training: Training
    weights_digest: str


class MonotonicResult(Result):
    """train-monotonic: the constrained model, trained further, and its weights as they were verified afterwards."""

    training: Training
    constraint: VerifiedWeights
    weights_digest: str


class EvaluateResult(Result):
    """evaluate: the loss of every model on the test split."""

    split: str
    documents: int
    models: dict[str, ModelLoss]
    records_digest: str


class Restart(Result):
    """One restart of the search for a trigger; the loss is that of the search documents behind the trigger."""

    search_loss_nats_per_token: float
    trigger_ids: list[int]


class Trigger(Result):
    """The trigger that was kept for one model, and what the search for it cost."""

    trigger_ids: list[int]
    trigger_text: str
    trigger_round_trips: bool
    search_loss_clean_nats_per_token: float
    search_loss_nats_per_token: float
    restarts: list[Restart]
    backward_sequences: int
    forward_sequences: int


class UatResult(Result):
    """uat: a universal trigger for each model."""

    split: str
    documents: int
    attack: TriggerAttack
    models: dict[str, Trigger]
    records_digest: str


class Flips(Result):
    """What the attack on all texts of one model cost, and how many of them could be sent as text."""

    forward_sequences: int
    backward_sequences: int
    flips: int
    round_trips: int


class HotFlipResult(Result):
    """hotflip: a few tokens of each text replaced."""

    split: str
    documents: int
    attack: FlipAttack
    models: dict[str, Flips]
    records_digest: str
