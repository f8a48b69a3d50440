"""The texts of an attack: the documents of a split as token ids, cut to what is attacked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from storage.errors import BadInput
from tasks.attacks.scoring import Victim
from tasks.language import foreign
from tasks.language import model as language
from tasks.language.tokenizer import encode
from tasks.stage.execution import Execution
from tasks.stage.numerics import device
from tasks.stage.run import StageInput

MIN_TOKENS = 2
"""A shorter text leaves nothing to score once a token is replaced."""


@dataclass(frozen=True)
class Text:
    """The first tokens of one document."""

    example_id: str
    source: str
    tokens: list[int]


def attacked_texts(
    setup: StageInput, tokenizer: PreTrainedTokenizerBase, split: str, tokens: int, documents: int | None = None
) -> list[Text]:
    """The first `tokens` tokens of the first `documents` documents of a split, the same for every model.

    The end is cut, never the beginning, so nothing that stands in front is lost. BadInput for a document with
    fewer than two tokens: none is left out in silence.
    """
    rows = pq.read_table(setup.path / "text" / f"{split}.parquet").to_pylist()[:documents]
    ids = encode(tokenizer, (row["text"] for row in rows))
    texts = [Text(row["example_id"], row["source"], own[:tokens]) for row, own in zip(rows, ids, strict=True)]
    for row, text in zip(rows, texts, strict=True):
        if len(text.tokens) < MIN_TOKENS:
            raise BadInput(
                f"the document {row['text'][:40]!r} of split {split} (source {row['source']}) has "
                f"{len(text.tokens)} token, which cannot be attacked: take it out of the text"
            )
    return texts


def tokenizer_of(setup: StageInput) -> PreTrainedTokenizerBase:
    """The study's tokenizer."""
    return foreign.tokenizer(setup.path / "text" / "tokenizer", local_files_only=True)


def victim(model: Path, end_of_text: int, execution: Execution, batch_examples: int) -> Victim:
    """The model in this folder, ready to be attacked; `end_of_text` is the token id that every text is read behind."""
    return Victim(language.load(model).to(device(execution)), end_of_text, batch_examples)
