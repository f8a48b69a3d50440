"""Results about a text and a language model that other stages read."""

from typing import Literal

from pydantic import Field

from tasks.stage.result import Result


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


class SetupResult(Result):
    """setup: rows that could not be read and were left out (text.skip_bad_rows), by file; `text/` tells all else."""

    skipped_rows: dict[str, int] = Field(default_factory=dict)


class BaseResult(Result):
    """base: the model that all arms start from.

    `validation_losses`, in nats per token, are those of the model itself (`base`) and of what it is held against.
    """

    validation_losses: dict[str, float]
