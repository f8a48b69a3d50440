"""Results about a text and a language model that other stages read."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from tasks.language.losses import ModelLoss, RoundedLoss
from tasks.stage.result import Result
from tasks.training.initial import InitialWeights


class SplitSummary(Result):
    """One split; `digest` is the sha256 over the sorted example ids, one a line."""

    documents: int
    characters: int
    sources: int
    digest: str


class SharedBySplits(Result):
    """How many texts and sources two splits have in common: none, or there would be no result."""

    splits: list[str]
    shared_content: int
    shared_sources: int


class SplitsProof(Result):
    """Proof of what the splits hold, what was dropped, and that they share nothing.

    `largest_shared_shingles` is the largest share of a train document's word sequences that stands in an evaluation
    split.
    """

    splits: dict[str, SplitSummary]
    largest_shared_shingles: float
    pairs: list[SharedBySplits]
    duplicates_dropped_documents: int
    contaminated_dropped_documents: int


class LabelledResult(Result):
    """Labelled texts. `repeated` rows had the text of an earlier one, `skipped` could not be read, by file."""

    rows: int
    repeated: int
    skipped: dict[str, int]
    labels: dict[str, int]
    records_digest: str


class PackedSplit(Result):
    """A packed split, as `tasks.language.blocks.pack` wrote it; `sha256` is that of the token file."""

    dtype: Literal["uint16", "uint32"]
    sequence_length: int
    blocks: int
    tokens: int
    dropped_tokens: int
    sha256: str

    @property
    def predicted_tokens(self) -> float:
        """Tokens that a model predicts of one block, on average."""
        return self.sequence_length - 1


class PackedPairs(PackedSplit):
    """A packed split of pairs, as `tasks.language.pairs.pack_pairs` wrote it: a block is an article and its summary.

    Each is ended by an end-of-text token and filled up, the article to `article_tokens`, which begin with `prefix_ids`.
    `tokens` are those of the summaries, which a model predicts; what was longer was cut at its end.
    """

    article_tokens: int
    articles_cut: int
    summaries_cut: int
    prefix_ids: list[int]
    end_of_text_id: int
    padding_id: int

    @property
    def predicted_tokens(self) -> float:
        return self.tokens / self.blocks

    def as_read(self, article: list[int], summary: list[int]) -> tuple[list[int], list[int]]:
        """The tokens of a pair as a model reads and is asked for them: cut, and ended."""
        room = self.article_tokens - 1
        return (
            [*[*self.prefix_ids, *article][:room], self.end_of_text_id],
            [*summary[: self.sequence_length - room - 2], self.end_of_text_id],
        )


class TrainedCheck(Result):
    """The validation perplexity of the base model beside what it is compared with, and the ratios required at most."""

    validation_perplexity: dict[str, float]
    ratio_of_perplexities: dict[str, float]
    required_ratio: dict[str, float]


class Validation(Result):
    """The validation loss after a step."""

    step: int
    validation_loss_nats_per_token: float
    trivial: dict[str, float] | None = None
    ratio_to_trivial: float | None = None


class Training(Result):
    """Cost and outcome of the training of a language model; the kept weights are those of `best_step`.

    With patience `ended_early_at_step` is the step after which the training ended early, or None; without it 0, which
    is not written. `trivial` and `ratio_to_trivial` are there where the budget asks for them.
    """

    budget: dict[str, Any]  # left as the training wrote it: a field that a budget has gained since stays away
    guard: dict[str, Any] | None = None
    steps: int
    epochs: float
    ended_early_at_step: int | None = 0
    tokens_trained: int
    best_step: int
    best_validation_loss_nats_per_token: float
    trivial: dict[str, float] | None = None
    ratio_to_trivial: float | None = None
    best_validation_perplexity: float
    gradients: list[dict[str, float]]
    gradient_advice: str
    validations: list[Validation]


class SetupResult(Result):
    """setup: what the text holds, and how it was packed; `skipped_rows` by file, of text.skip_bad_rows."""

    splits: dict[str, SplitSummary]
    largest_shared_shingles: float
    duplicates_dropped_documents: int
    contaminated_dropped_documents: int
    vocabulary_tokens: int
    end_of_text_id: int
    tokenizer_digest: str
    packed: dict[str, PackedSplit | PackedPairs]
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


class EvaluateResult(Result):
    """evaluate: the loss of every model on the test split; `rounded` says what a `precision` but fp32 does to it."""

    split: str
    documents: int
    models: dict[str, ModelLoss]
    precision: str = "fp32"
    rounded: dict[str, RoundedLoss] = Field(default_factory=dict)
    records_digest: str
