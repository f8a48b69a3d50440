"""Which tokens an attacker may write: those that survive being text.

An attack works on token ids and is reported as text. An id that the tokenizer would not give back for its own text
(half of a character, a token that is always merged, a padding row) stands for nothing that a person could type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from storage.errors import BadInput
from tasks.language.tokenizer import encode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def usable_tokens(tokenizer: PreTrainedTokenizerBase, vocabulary_size: int) -> torch.Tensor:
    """True for every id that may be written, bool [V]; V is the model's vocabulary, padding rows included.

    Not usable: special tokens, ids that the tokenizer does not know, and ids v with encode(decode(v)) != v.
    Raises BadInput when fewer than two are left, which would be a broken tokenizer.
    """
    special = set(tokenizer.all_special_ids)
    known = [id_ for id_ in range(min(len(tokenizer), vocabulary_size)) if id_ not in special]
    usable = torch.zeros(vocabulary_size, dtype=torch.bool)
    for id_, again in zip(known, encode(tokenizer, (text_of(tokenizer, [id_]) for id_ in known)), strict=True):
        usable[id_] = again == [id_]
    if usable.sum() < 2:
        raise BadInput("the tokenizer gives back none of its tokens when they are decoded and encoded: repair it")
    return usable


def text_of(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of `ids`, exactly as they decode."""
    return tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)


def round_trips(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> bool:
    """Whether encoding the text of `ids` gives the same ids: the attack could be sent as text."""
    return next(encode(tokenizer, [text_of(tokenizer, ids)])) == list(ids)
