"""The loss of attacked texts: on the text's own tokens, never on what the attacker wrote.

Shape suffixes: B sequences, L tokens of the longest, V vocabulary, D width of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn

from storage.errors import CheckFailed
from tasks.attacks.configuration import BACKWARD_FORWARDS, Precision
from tasks.language.model import token_losses


@dataclass
class Count:
    """Sequences that went through a model, counted where it happens: the budget of an attack."""

    forward_sequences: int = 0
    backward_sequences: int = 0

    @property
    def as_forwards(self) -> int:
        """What a search without gradients may spend in its place."""
        return self.forward_sequences + BACKWARD_FORWARDS * self.backward_sequences


@dataclass
class Victim:
    """A model under attack. Its weights stay as they are; every sequence through it is counted."""

    model: nn.Module
    end_of_text: int
    batch: int
    """Sequences in one forward pass."""
    precision: Precision = "fp32"
    """bf16 by autocast; tf32 has a meaning on a GPU only."""
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
        never reads, so a text's losses depend on its batch only by rounding. CheckFailed for one that is not finite.
        """

        def of(rows: Sequence[int]) -> list[torch.Tensor]:
            tokens_BL = self._read(rows, prefixes, texts)
            with self._searching():
                losses_BL = token_losses(self.model, tokens_BL).double().cpu()
            if not losses_BL.isfinite().all():
                raise CheckFailed("every loss under attack is a finite number", "infinite or not a number", "finite")
            starts = [len(prefixes[row]) for row in rows]
            ends = [start + len(texts[row]) for start, row in zip(starts, rows, strict=True)]
            return [losses_L[a:b] for losses_L, a, b in zip(losses_BL, starts, ends, strict=True)]

        self.count.forward_sequences += len(texts)
        return self._in_batches(of, [len(p) + len(t) for p, t in zip(prefixes, texts, strict=True)])

    def gradients(
        self,
        prefixes: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        scored: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Gradient of the summed loss of each sequence with respect to its embeddings, fp32 [prefix + text, D].

        `scored` says which tokens of each text count, bool [tokens of the text]. On the model's device.
        """

        def of(rows: Sequence[int]) -> list[torch.Tensor]:
            tokens_BL = self._read(rows, prefixes, texts)
            weights_BL = torch.zeros(tokens_BL.shape[0], tokens_BL.shape[1] - 1)
            for place, row in enumerate(rows):
                start = len(prefixes[row])
                weights_BL[place, start : start + len(scored[row])] = scored[row].float()
            embedded_BLD = self.embeddings_VD[tokens_BL[:, :-1]].detach().requires_grad_()
            with self._searching():
                logits_BLV = self.model(inputs_embeds=embedded_BLD).logits.float()
                losses = nn.functional.cross_entropy(
                    logits_BLV.flatten(0, 1), tokens_BL[:, 1:].flatten(), reduction="none"
                )
                (losses * weights_BL.flatten().to(self.device)).sum().backward()
            # the last token is read by no prediction, so its gradient is zero and no part of the input
            gradient_BLD = nn.functional.pad(embedded_BLD.grad, (0, 0, 0, 1))
            ends = [1 + len(prefixes[row]) + len(texts[row]) for row in rows]
            return [own_LD[1:end] for own_LD, end in zip(gradient_BLD, ends, strict=True)]

        self.count.forward_sequences += len(texts)
        self.count.backward_sequences += len(texts)
        return self._in_batches(of, [len(p) + len(t) for p, t in zip(prefixes, texts, strict=True)])

    def _in_batches(self, of: Callable[[list[int]], list[torch.Tensor]], lengths: list[int]) -> list[torch.Tensor]:
        """`of` the numbers of all sequences, a batch at a time, in their order; batches are of like lengths."""
        order = sorted(range(len(lengths)), key=lengths.__getitem__)
        found: dict[int, torch.Tensor] = {}
        for start in range(0, len(order), self.batch):
            rows = order[start : start + self.batch]
            found |= zip(rows, halved_until_it_fits(of, rows), strict=True)
        return [found[row] for row in range(len(lengths))]

    def _read(
        self, rows: Sequence[int], prefixes: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """What the model reads of these sequences, filled up on the right."""
        sequences = [[self.end_of_text, *prefixes[row], *texts[row]] for row in rows]
        longest = max(map(len, sequences))
        filled = [sequence + [self.end_of_text] * (longest - len(sequence)) for sequence in sequences]
        return torch.tensor(filled, device=self.device)

    @contextmanager
    def _searching(self) -> Iterator[None]:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = before or self.precision == "tf32"
        try:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def halved_until_it_fits(of: Callable[[list[int]], list[torch.Tensor]], rows: list[int]) -> list[torch.Tensor]:
    """`of(rows)`, in halves where the GPU's memory does not hold all; torch's OutOfMemoryError where one does not fit.

    A batch is tried whole every time and never remembered as too large, so that how it is cut, and with it rounding,
    does not depend on what an attempt did before.
    """
    try:
        return of(rows)
    except torch.OutOfMemoryError:
        if len(rows) == 1:
            raise
    torch.cuda.empty_cache()  # after the exception, whose frames hold the tensors
    half = len(rows) // 2
    return [*halved_until_it_fits(of, rows[:half]), *halved_until_it_fits(of, rows[half:])]


def replaced(ids: Sequence[int], position: int, token: int) -> list[int]:
    """`ids` with `token` at `position`."""
    return [*ids[:position], token, *ids[position + 1 :]]
