"""A small classifier of texts: the mean of word embeddings, and a network of two hidden layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

PADDING = 0


class Bag(nn.Module):
    """Reads numbers of words [B, T], 0 being padding; it knows no order of words. Logits are [B, labels]."""

    def __init__(self, words: int, labels: int, embedding: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words + 1, embedding)
        self.first, self.second = nn.Linear(embedding, hidden), nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, labels)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """What the last layer reads, [B, hidden]."""
        real = (ids != PADDING).unsqueeze(-1)
        mean = (self.embedding(ids) * real).sum(1) / real.sum(1).clamp(min=1)
        return self.second(self.first(mean).relu()).relu()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.hidden(ids))


def words_of(text: str) -> list[str]:
    """Words and single signs, in small letters."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def numbered(texts: Iterable[str]) -> dict[str, int]:
    """The number of every word of the texts, from 1."""
    return {word: number for number, word in enumerate(sorted({word for text in texts for word in words_of(text)}), 1)}


def encoded(texts: Sequence[str], numbers: Mapping[str, int]) -> torch.Tensor:
    """Numbers of the words, [N, longest], padded behind; each word must have one."""
    return pad_sequence(
        [torch.tensor([numbers[word] for word in words_of(text)] or [PADDING]) for text in texts],
        batch_first=True,
        padding_value=PADDING,
    )


def plain(
    weights: Mapping[str, np.ndarray], ids: Sequence[int], label: int
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Logits of one text and the gradient of its loss by each module's weight, its bias as a column more: by numpy
    alone, for whoever checks what torch says."""
    values, inputs, layers = weights["embedding.weight"][[*ids]].mean(0), [], ("first", "second", "last")
    for name in layers:
        inputs.append(np.append(values, 1.0))
        logits = weights[f"{name}.weight"] @ values + weights[f"{name}.bias"]
        values = np.maximum(logits, 0)
    shares = np.exp(logits - logits.max())
    back, found = shares / shares.sum() - np.eye(len(logits))[label], dict[str, np.ndarray]()
    for name, given in zip(reversed(layers), reversed(inputs), strict=True):
        found[name] = np.outer(back, given)
        back = weights[f"{name}.weight"].T @ back * (given[:-1] > 0 if name != "first" else 1.0)
    found["embedding"] = np.zeros_like(weights["embedding.weight"])
    np.add.at(found["embedding"], [*ids], back / len(ids))
    return logits, found
