"""An encoder-decoder under attack: the loss of a reference, where the article that it is written from is attacked.

Shape suffixes: B sequences, L tokens of the longest article, S of the longest reference, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import nn

from tasks.attacks.scoring import Scored, Text, Tokens, Victim, finite
from tasks.language.model import filled_up, reference_losses, until_the_end, written_before
from tasks.language.result import PackedPairs


@dataclass
class PairVictim(Victim):
    """A model that reads the prefix, what an attacker wrote, the article and an end, and is asked for the reference.

    Prefixes are an attacker's: they stand behind the study's own. Nothing is ever cut; every candidate changes all
    states of the encoder, so that none is kept from one to the next.
    """

    packed: PackedPairs = field(kw_only=True)

    def _losses(
        self, rows: Sequence[int], prefixes: Tokens, texts: Tokens, scored: Scored | None
    ) -> Sequence[torch.Tensor]:
        read_BL, references_BS = self._read(rows, prefixes, texts), self._references(rows, texts)
        with self.in_precision():
            losses_BS = reference_losses(self.model, read_BL, references_BS, self.packed.end_of_text_id)
        return [own_S[: len(_reference(texts[row]))] for own_S, row in zip(finite(losses_BS), rows, strict=True)]

    def _gradients(self, rows: Sequence[int], prefixes: Tokens, texts: Tokens, scored: Scored) -> list[torch.Tensor]:
        read_BL, references_BS = self._read(rows, prefixes, texts), self._references(rows, texts)
        embedded_BLD = self.embeddings_VD[read_BL].detach().requires_grad_()
        own, end = len(self.packed.prefix_ids), self.packed.end_of_text_id
        ends = [own + len(prefixes[row]) + len(texts[row]) for row in rows]
        wanted_BS = until_the_end(references_BS, end).bool()
        with self.in_precision():
            logits_BSV = self.model(
                inputs_embeds=self.cast(embedded_BLD),
                attention_mask=until_the_end(read_BL, end),
                decoder_input_ids=written_before(self.model, references_BS),
                use_cache=False,
            ).logits
            losses_N = nn.functional.cross_entropy(
                logits_BSV[wanted_BS].float(), references_BS[wanted_BS], reduction="none"
            )
            losses_N.sum().backward()
        assert embedded_BLD.grad is not None
        return [own_LD[own:end] for own_LD, end in zip(embedded_BLD.grad, ends, strict=True)]

    def _read(self, rows: Sequence[int], prefixes: Tokens, texts: Tokens) -> torch.Tensor:
        """What the encoder reads, filled up on the right."""
        packed = self.packed
        read = [[*packed.prefix_ids, *prefixes[row], *texts[row], packed.end_of_text_id] for row in rows]
        return filled_up(read, packed.padding_id).to(self.device)

    def _references(self, rows: Sequence[int], texts: Tokens) -> torch.Tensor:
        references = [_reference(texts[row]) for row in rows]
        return filled_up(references, self.packed.padding_id).to(self.device)


def _reference(text: Sequence[int]) -> list[int]:
    return cast(Text, text).reference
