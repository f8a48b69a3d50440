"""A language model with a planted weakness, whose every loss can be computed by hand."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

from tasks.attacks.scoring import Victim

VOCABULARY, END, POISON = 40, 0, 33


class Gullible(nn.Module):
    """Prefers the tokens 1 to 30 by 4 nats, and by 4 less for each poison that it has read. Nothing else matters."""

    def __init__(self) -> None:
        super().__init__()
        embeddings = torch.randn(VOCABULARY, 3, generator=torch.Generator().manual_seed(0))
        embeddings[:, 0] = 0.0
        embeddings[POISON, 0] = 1.0
        self.embedding = nn.Embedding.from_pretrained(embeddings)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids=None, inputs_embeds=None):
        embedded_BLD = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        poison_BL1 = embedded_BLD[..., :1].cumsum(dim=1)
        preferred_V = (torch.arange(VOCABULARY) - 15.5).abs() < 15
        return SimpleNamespace(logits=4.0 * (1.0 - poison_BL1) * preferred_V)


def planted(batch: int = 7) -> Victim:
    return Victim(Gullible(), END, batch)


def texts(count: int = 6, length: int = 12) -> list[list[int]]:
    """Texts that count up, from different numbers on; none holds the poison."""
    return [[1 + (start + step) % 30 for step in range(length)] for start in range(0, 5 * count, 5)]


def usable() -> torch.Tensor:
    """Every token but END."""
    mask = torch.ones(VOCABULARY, dtype=torch.bool)
    mask[END] = False
    return mask
