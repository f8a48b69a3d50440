"""Articles with their summaries: how a pair is one document of a text, and how pairs are packed for a model.

A pair is a document like any other, whose text is the article, SEPARATOR, the summary: it is identified as a whole, and
no split holds one whose article begins as that of another. A model reads the prefix, the article's first tokens and an
end-of-text token, and writes the summary and an end-of-text token; a trigger stands behind the prefix.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage import durable
from storage.errors import BadInput
from tasks.language.blocks import DTYPES, Blocks, width_of
from tasks.language.document import Document, document
from tasks.language.result import PackedPairs

if TYPE_CHECKING:
    import torch

SEPARATOR = "\x1f"
"""ASCII's separator of units. Where a text holds one, a space takes its place."""
LEAST_ARTICLE_WORDS, LEAST_SUMMARY_WORDS = 12, 3
"""Of docstrings, whose shorter bodies and first lines tell nothing."""


def joined(article: str, summary: str) -> str:
    """The text of a pair; ValueError where one is empty, or the summary the longer of the two."""
    article, summary = (part.replace(SEPARATOR, " ").strip() for part in (article, summary))
    for name, part in (("article", article), ("summary", summary)):
        if not any(map(str.isprintable, "".join(part.split()))):  # a mark or space of no width is nothing to read
            raise ValueError(f"has no {name}")
    if len(summary) >= len(article):
        raise ValueError(f"has a summary of {len(summary)} characters for an article of {len(article)}")
    return f"{article}{SEPARATOR}{summary}"


def labelled(text: str, label: str) -> str:
    """The text of a labelled one; ValueError where one is empty."""
    text, label = (part.replace(SEPARATOR, " ").strip() for part in (text, label))
    if not text or not label:
        raise ValueError(f"has no {'label' if text else 'text'}")
    return f"{text}{SEPARATOR}{label}"


def parted(text: str) -> tuple[str, str]:
    """Article and summary of a pair's text, or a labelled text and its label."""
    article, _, summary = text.partition(SEPARATOR)
    return article, summary


def beginning(text: str, characters: int) -> str:
    """What no two pairs may share: so many characters of the article, of which a model reads the beginning alone."""
    return " ".join(parted(text)[0].split())[:characters]


def docstring_pairs(documents: Iterable[Document]) -> Iterator[Document]:
    """Pairs of docstrings: the body is the article, the first paragraph its summary; others give none."""
    for each in documents:
        summary, _, article = each.text.partition("\n\n")
        enough = len(article.split()) >= LEAST_ARTICLE_WORDS and len(summary.split()) >= LEAST_SUMMARY_WORDS
        if enough and len(summary.strip()) < len(article.strip()):
            yield document(each.source, joined(article, " ".join(summary.split())))


def pack_pairs(
    folder: Path,
    split: str,
    pairs: Iterable[tuple[list[int], list[int]]],
    *,
    prefix: Sequence[int],
    article_tokens: int,
    summary_tokens: int,
    vocabulary_size: int,
    end_of_text: int,
    padding: int,
) -> PackedPairs:
    """Writes `<split>.bin` and `<split>.json` into `folder`, a row for each pair of token ids; returns the JSON.

    Both lengths count the end-of-text token, that of the article the prefix too. What is longer is cut at its end, and
    counted; a prefix is never cut. BadInput where there is no pair.
    """
    packed = PackedPairs(
        dtype=width_of(vocabulary_size),
        sequence_length=article_tokens + summary_tokens,
        blocks=0,
        tokens=0,
        dropped_tokens=0,
        sha256="",
        article_tokens=article_tokens,
        articles_cut=0,
        summaries_cut=0,
        prefix_ids=list(prefix),
        end_of_text_id=end_of_text,
        padding_id=padding,
    )
    digest, counted = hashlib.sha256(), Counter[str]()
    with durable.new_file(folder / f"{split}.bin") as temporary, temporary.open("wb") as file:
        for article, summary in pairs:
            read, written = packed.as_read(article, summary)
            row = np.full(packed.sequence_length, padding, dtype=DTYPES[packed.dtype])
            row[: len(read)], row[article_tokens : article_tokens + len(written)] = read, written
            file.write(row.tobytes())
            digest.update(row.tobytes())
            counted["blocks"] += 1
            counted["tokens"] += len(written)
            counted["articles_cut"] += len(prefix) + len(article) >= article_tokens
            counted["summaries_cut"] += len(summary) >= summary_tokens
        if not counted:
            raise BadInput(f"split {split} holds no pair: raise splits.{split}_documents, or give more text")
    packed = packed.model_copy(update={"sha256": digest.hexdigest(), **counted})
    durable.write_json(folder / f"{split}.json", packed.as_json())
    return packed


class Pairs(Blocks):
    """The packed pairs of one split, read only and memory-mapped: blocks of an article and a summary."""

    def __init__(self, folder: Path, split: str) -> None:
        super().__init__(folder, split)
        self.packed = PackedPairs.read_file(folder / f"{split}.json")
        references = self._tokens[:, self.packed.article_tokens :]
        self.lengths = (references == self.packed.end_of_text_id).argmax(axis=1) + 1

    @property
    def weight(self) -> int:
        return int(self.lengths.sum())

    @property
    def predicted_tokens(self) -> float:
        return self.packed.predicted_tokens

    @property
    def counted_tokens(self) -> int:
        return self.weight

    def token_counts(self, vocabulary_size: int) -> np.ndarray:
        """How often each token occurs in the summaries, which are all that is predicted."""
        return np.bincount(self.predicted(), minlength=vocabulary_size)

    def weights(self, indices: np.ndarray, _epoch: int) -> np.ndarray:
        """Tokens of the summaries at `indices`, [B]: a loss is a sum over them."""
        return self.lengths[indices]

    def predicted(self) -> np.ndarray:
        references = self._tokens[:, self.packed.article_tokens :]
        return references[np.arange(references.shape[1]) < self.lengths[:, None]].astype(np.int64)

    def of_another(self) -> Callable[[np.ndarray], torch.Tensor]:
        """Like indexing, but every article stands with the summary of the next one: what a model gets without it."""
        import torch

        def at(indices: np.ndarray) -> torch.Tensor:
            article, other = self[indices], self[(indices + 1) % len(self)]
            width = self.packed.article_tokens
            return torch.cat([article[:, :width], other[:, width:]], dim=1)

        return at


def packed_pairs(folder: Path) -> PackedPairs | None:
    """How a text of pairs is packed; None of any other."""
    file = folder / "train.json"
    return PackedPairs.read_file(file) if file.is_file() and "article_tokens" in durable.read_json(file) else None


def packed_split(folder: Path, split: str) -> Blocks:
    """The packed text of one split, whichever it is made of."""
    description = durable.read_json(folder / f"{split}.json")
    return Pairs(folder, split) if "article_tokens" in description else Blocks(folder, split)
