"""The documents of a split as token ids, as every stage after setup reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, overload

import pyarrow.parquet as pq

from tasks.language import foreign
from tasks.language.pairs import packed_pairs, parted
from tasks.language.tokenizer import encode, encode_pairs
from tasks.stage.run import StageInput

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Text(Sequence[int]):
    """A document, and its tokens or the first of them.

    Of a pair its article; `reference` is what is predicted from that, `read` what a model reads of it, with the prefix
    and the end.
    """

    example_id: str
    source: str
    tokens: list[int]
    reference: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    text: str = ""

    def __len__(self) -> int:
        return len(self.tokens)

    @overload
    def __getitem__(self, place: int) -> int: ...
    @overload
    def __getitem__(self, place: slice) -> list[int]: ...
    def __getitem__(self, place: int | slice) -> int | list[int]:
        return self.tokens[place]

    @property
    def article(self) -> str:
        return parted(self.text)[0]

    @property
    def summary(self) -> str:
        return parted(self.text)[1]

    def scored(self, most: int | None = None) -> int:
        """Tokens that are scored where its first `most` are read: the reference of a pair, else the text's own."""
        return len(self.reference) or min(len(self), most or len(self))


def tokenizer_of(text: StageInput) -> PreTrainedTokenizerBase:
    """The study's tokenizer."""
    return foreign.kept_tokenizer(text.path / "text" / "tokenizer")


def texts_of(text: StageInput, split: str, documents: int | None = None) -> list[Text]:
    """The first documents of a split in its order, or all."""
    rows, tokenizer = pq.read_table(text.path / "text" / f"{split}.parquet").to_pylist()[:documents], tokenizer_of(text)
    tokens: list[tuple[list[int], list[int], list[int]]] = []
    if packed := packed_pairs(text.path / "text"):
        for article, summary in encode_pairs(tokenizer, (parted(row["text"]) for row in rows)):
            read, reference = packed.as_read(article, summary)
            tokens.append((article, reference, read))
    else:
        tokens = [(ids, [], []) for ids in encode(tokenizer, (row["text"] for row in rows))]
    return [Text(row["example_id"], row["source"], *own, row["text"]) for row, own in zip(rows, tokens, strict=True)]
