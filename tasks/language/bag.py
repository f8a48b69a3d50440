"""A small classifier of texts: the mean of word embeddings, and a network of two hidden layers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from storage import durable
from storage.errors import BadInput, cut
from storage.tensors import write_tensors
from tasks.training.weights import load_kept

PADDING = 0


class Bag(nn.Module):
    """Reads numbers of words [B, T], 0 being padding; it knows no order of words. Logits are [B, labels]."""

    kinds: tuple[str, ...] = ("linear", "embedding")
    excluded: tuple[str, ...] = ()
    """What influence asks of it: all of it."""

    def __init__(self, words: Mapping[str, int], labels: Sequence[str], embedding: int, hidden: int) -> None:
        super().__init__()
        self.described = {"words": dict(words), "labels": [*labels], "embedding": embedding, "hidden": hidden}
        self.words, self.labels = words, [*labels]
        self.embedding = nn.Embedding(len(words) + 1, embedding)
        self.first, self.second = nn.Linear(embedding, hidden), nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, len(labels))

    def encoded(self, texts: Sequence[str]) -> torch.Tensor:
        """Numbers of the words, [N, longest], padded behind; each word must have one."""
        ids = [torch.tensor(self._numbers(text) or [PADDING]) for text in texts]
        return pad_sequence(ids, batch_first=True, padding_value=PADDING)

    def _numbers(self, text: str) -> list[int]:
        if unknown := {*words_of(text)} - self.words.keys():
            raise BadInput(f"the classifier knows no {min(unknown)!r}: it was made for other texts than {cut(text)!r}")
        return [self.words[word] for word in words_of(text)]

    def real(self, ids: torch.Tensor, module: str) -> torch.Tensor | None:
        """Which positions of a module's input are words of a text, [B, T]; None: there is one, which is."""
        return ids != PADDING if module == "embedding" else None

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """What the last layer reads, [B, hidden]."""
        real = (ids != PADDING).unsqueeze(-1)
        mean = (self.embedding(ids) * real).sum(1) / real.sum(1).clamp(min=1)
        return self.second(self.first(mean).relu()).relu()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.hidden(ids))

    def save(self, folder: Path) -> None:
        """A folder that `load` reads."""
        durable.write_json(folder / "bag.json", self.described)
        write_tensors(folder / "model.safetensors", {name: tensor.cpu() for name, tensor in self.state_dict().items()})

    @classmethod
    def load(cls, folder: Path) -> Bag:
        """The classifier of a folder; BadInput where a word has no number of its own, or weights do not fit."""
        described = durable.read_json(file := folder / "bag.json")
        if sorted(described["words"].values()) != [*range(1, len(described["words"]) + 1)]:
            raise BadInput(f"{file}: the numbers of the words are not 1 to {len(described['words'])}, each once")
        model = cls(**described)
        load_kept(model, folder / "model.safetensors")
        return model


def words_of(text: str) -> list[str]:
    """Words and single signs, in small letters."""
    return re.findall(r"\w+|[^\w\s]", text.lower())


def numbered(texts: Iterable[str]) -> dict[str, int]:
    """The number of every word of the texts, from 1."""
    return {word: number for number, word in enumerate(sorted({word for text in texts for word in words_of(text)}), 1)}
