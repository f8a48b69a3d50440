"""Language models with planted weaknesses, whose every loss can be computed by hand."""

from types import SimpleNamespace

import torch
from torch import nn

from tasks.attacks.scoring import Victim

VOCABULARY, END, POISON = 40, 0, 33


class Gullible(nn.Module):
    """Prefers the tokens 1 to 30 by 4 nats, and by 4 less for each poison that it has read. Nothing else matters."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        embeddings = torch.randn(vocabulary, 3, generator=torch.Generator().manual_seed(0))
        embeddings[:, 0] = 0.0
        embeddings[POISON, 0] = 1.0
        self.embedding = nn.Embedding.from_pretrained(embeddings)

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def dose(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        """How much poison each token is, [B, L, 1]."""
        return embedded_BLD[..., :1]

    def forward(self, input_ids=None, inputs_embeds=None):
        embedded_BLD = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        poison_BL1 = self.dose(embedded_BLD).cumsum(dim=1)
        preferred_V = (torch.arange(self.embedding.num_embeddings) - 15.5).abs() < 15
        return SimpleNamespace(logits=4.0 * (1.0 - poison_BL1) * preferred_V)


class Masked(Gullible):
    """The same, but every eighth token above 30 is poison, and no gradient says so: it points elsewhere.

    The dose is quantised, so that its true slope is 0; what comes back in its place is the slope of a feature that
    is rounded away, and that poison has least of (a straight-through estimator).
    """

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__(vocabulary)
        embeddings = self.embedding.weight.data
        poison_V = (torch.arange(vocabulary) > 30) & (torch.arange(vocabulary) % 8 == 1)
        embeddings[:, 0] = poison_V.float()
        embeddings[:, 1] = torch.linspace(0.0, 0.4, vocabulary).where(~poison_V, torch.tensor(-0.4))

    def dose(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        quantised = embedded_BLD[..., :1].floor() + embedded_BLD[..., 1:2].round()
        return embedded_BLD[..., 1:2] + (quantised - embedded_BLD[..., 1:2]).detach()


def planted(batch: int = 7, model: type[Gullible] = Gullible, vocabulary: int = VOCABULARY) -> Victim:
    return Victim(model(vocabulary), END, batch)


def texts(count: int = 6, length: int = 12) -> list[list[int]]:
    """Texts that count up, from different numbers on; none holds the poison."""
    return [[1 + (start + step) % 30 for step in range(length)] for start in range(0, 5 * count, 5)]


def usable(vocabulary: int = VOCABULARY) -> torch.Tensor:
    """Every token but END."""
    mask = torch.ones(vocabulary, dtype=torch.bool)
    mask[END] = False
    return mask
