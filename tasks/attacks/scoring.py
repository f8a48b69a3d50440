"""The loss of attacked texts: on the text's own tokens, never on what the attacker wrote.

Shape suffixes: B sequences, L tokens of the longest, V vocabulary, D width of an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from storage.errors import CheckFailed
from tasks.language.model import token_losses


@dataclass
class Count:
    """Sequences that went through a model, counted where it happens: the budget of an attack."""

    forward_sequences: int = 0
    backward_sequences: int = 0


@dataclass
class Victim:
    """A model under attack. Its weights stay as they are; every sequence through it is counted."""

    model: nn.Module
    end_of_text: int
    batch: int
    """Sequences in one forward pass."""
    count: Count = field(default_factory=Count)

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)
        self.device = next(self.model.parameters()).device
        self.embeddings_VD = self.model.get_input_embeddings().weight

    @torch.no_grad()
    def losses(self, prefixes: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """-log p of every token of each text behind its prefix, in nats, float64 [tokens of the text], on the CPU.

        What the model reads is an end-of-text token, the prefix, the text. Nothing is ever cut: a sequence longer
        than the model's window is a mistake of the caller. Padding stands on the right, which causal attention
        never reads, so a text's losses depend on its batch only by rounding.
        """
        found: list[torch.Tensor] = []
        for start in range(0, len(texts), self.batch):
            chunk = list(zip(prefixes[start : start + self.batch], texts[start : start + self.batch], strict=True))
            tokens_BL = self._padded([[self.end_of_text, *prefix, *text] for prefix, text in chunk])
            losses_BL = token_losses(self.model, tokens_BL).double().cpu()
            if not losses_BL.isfinite().all():
                raise CheckFailed("every loss under attack is a finite number", "infinite or not a number", "finite")
            self.count.forward_sequences += len(chunk)
            for row, (prefix, text) in enumerate(chunk):
                found.append(losses_BL[row, len(prefix) : len(prefix) + len(text)])
        return found

    def gradients(
        self,
        prefixes: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        scored: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Gradient of the summed loss of each sequence with respect to its embeddings, fp32 [prefix + text, D].

        `scored` says which tokens of each text count, bool [tokens of the text]. On the model's device.
        """
        found: list[torch.Tensor] = []
        for start in range(0, len(texts), self.batch):
            span = slice(start, start + self.batch)
            sequences = [[self.end_of_text, *p, *t] for p, t in zip(prefixes[span], texts[span], strict=True)]
            tokens_BL = self._padded(sequences)
            weights_BL = torch.zeros(tokens_BL.shape[0], tokens_BL.shape[1] - 1)
            for row, (prefix, counted) in enumerate(zip(prefixes[span], scored[span], strict=True)):
                weights_BL[row, len(prefix) : len(prefix) + len(counted)] = counted.float()
            embedded_BLD = self.embeddings_VD[tokens_BL[:, :-1]].detach().requires_grad_()
            logits_BLV = self.model(inputs_embeds=embedded_BLD).logits.float()
            losses = nn.functional.cross_entropy(logits_BLV.flatten(0, 1), tokens_BL[:, 1:].flatten(), reduction="none")
            (losses * weights_BL.flatten().to(self.device)).sum().backward()
            self.count.forward_sequences += len(sequences)
            self.count.backward_sequences += len(sequences)
            gradient_BLD = embedded_BLD.grad
            for row, sequence in enumerate(sequences):
                # the last token is read by no prediction, so its gradient is zero and no part of the input
                last = torch.zeros(1, gradient_BLD.shape[2], device=self.device)
                found.append(torch.cat([gradient_BLD[row, 1 : len(sequence) - 1], last]))
        return found

    def _padded(self, sequences: Sequence[Sequence[int]]) -> torch.Tensor:
        longest = max(map(len, sequences))
        tokens_BL = torch.full((len(sequences), longest), self.end_of_text, dtype=torch.long)
        for row, sequence in enumerate(sequences):
            tokens_BL[row, : len(sequence)] = torch.tensor(sequence)
        return tokens_BL.to(self.device)


def best_replacements(
    gradient_PD: torch.Tensor,
    present: Sequence[int],
    embeddings_VD: torch.Tensor,
    usable_V: torch.Tensor,
    open_P: torch.Tensor,
    skip: int,
    count: int,
) -> list[tuple[int, int]]:
    """The `count` replacements (position, token) that raise the loss most to first order, after the best `skip`.

    HotFlip's estimate (Ebrahimi et al. 2018): putting v in place of x changes the loss by about (E_v - E_x) . g.
    The whole vocabulary is scored at every position P that `open_P` allows; the token that stands there and those
    that are not usable are left out. When fewer than `count` remain after `skip`, it begins again with the best.
    """
    device = gradient_PD.device
    scores_PV = gradient_PD @ embeddings_VD.float().T
    here = torch.tensor(present, device=device)
    scores_PV -= scores_PV.gather(1, here[:, None])
    forbidden_PV = ~usable_V.to(device)[None, :] | ~open_P.to(device)[:, None]
    forbidden_PV = forbidden_PV.scatter(1, here[:, None], True)
    scores = scores_PV.masked_fill(forbidden_PV, -torch.inf).flatten()
    available = int((~forbidden_PV).sum())
    count = min(count, available)
    skip = skip % (available - count + 1)
    order = torch.topk(scores, skip + count).indices[skip:].tolist()
    width = embeddings_VD.shape[0]
    return [divmod(place, width) for place in order]


def replaced(ids: Sequence[int], position: int, token: int) -> list[int]:
    """`ids` with `token` at `position`."""
    return [*ids[:position], token, *ids[position + 1 :]]
