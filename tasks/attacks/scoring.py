"""The loss of attacked texts: on the text's own tokens, never on what the attacker wrote.

Shape suffixes: B sequences, L tokens of the longest, N tokens that are scored, V vocabulary, D width of an embedding.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import torch
from torch import nn
from transformers import DynamicCache

from storage.errors import CheckFailed
from tasks.attacks.configuration import BACKWARD_FORWARDS
from tasks.language.model import filled_up
from tasks.language.texts import Text
from tasks.stage.outcome import is_out_of_memory

SPLIT_ARCHITECTURES = frozenset({"gpt_neox", "gpt2", "llama", "qwen2", "qwen3"})
"""Networks whose logits are the output embeddings times the last hidden states and nothing else (no scale, no cap),
and whose every layer keeps keys and values of all tokens. Any other is run whole, every logit of every token."""

ROWS_OF_LOGITS = 2048
"""Tokens whose logits exist at a time: enough to fill a GPU, and 0.4 GB with a vocabulary of 50,000."""

SHARED_BATCHES, SMALLEST_BATCH, SHARING_PAYS = 8, 4, 0.75
"""Variants of one text run in so many batches, each from where its first one differs; no batch is smaller than that;
and only where at most this share of the tokens is left to read: more and smaller passes cost something themselves."""


SearchPrecision = Literal["fp32", "bf16"]
Tokens = Sequence[Sequence[int]]
"""Token ids of each sequence: of prefixes, or of texts."""
Scored = Sequence[torch.Tensor]
"""The tokens of each text that count, bool [tokens of the text]."""


def targets(text: Sequence[int]) -> Sequence[int]:
    """The tokens whose loss counts: the reference of a pair, else the text's own."""
    return getattr(text, "reference", None) or text


@dataclass
class Count:
    """Sequences that went through a model, counted where it happens: the budget of an attack."""

    forward_sequences: int = 0
    backward_sequences: int = 0

    @property
    def as_forwards(self) -> int:
        """Forwards that a search without gradients may spend in its place."""
        return self.forward_sequences + BACKWARD_FORWARDS * self.backward_sequences


@dataclass
class Victim:
    """A model under attack. Its weights stay as they are; every sequence through it is counted."""

    model: nn.Module
    end_of_text: int
    batch: int
    """Sequences in one forward pass."""
    precision: SearchPrecision = "fp32"
    """bf16: of a copy of the weights, whose embeddings as they are rank what is tried."""
    count: Count = field(default_factory=Count)
    body: Callable[..., torch.Tensor] | None = None
    """Last hidden states in place of the model's own, of a search that is compiled."""

    def __post_init__(self) -> None:
        self.model.eval().requires_grad_(False)
        self.device = next(self.model.parameters()).device
        self.embeddings_VD = self.model.get_input_embeddings().weight
        if self.precision == "bf16":
            self.model = _in_bf16(self.model)
        self.head = _head(self.model)

    def searching(self, precision: SearchPrecision) -> Self:
        """The same model for a search in this precision, with a count of its own."""
        return replace(self, precision=precision, count=Count())

    def counted_anew(self) -> Self:
        """The same, for another search."""
        another = copy.copy(self)
        another.count = Count()
        return another

    @torch.no_grad()
    def losses(self, prefixes: Tokens, texts: Tokens, scored: Scored | None = None) -> list[torch.Tensor]:
        """-log p of every scored token of each text behind its prefix, in nats, float64 [N of the text], on the CPU.

        `scored`: None: all. What the model reads is an end-of-text token, the prefix, the text. Nothing is ever cut: a
        sequence longer than the model's window is a mistake of the caller. Padding stands on the right, which causal
        attention never reads, so a text's losses depend on its batch only by rounding. CheckFailed for one that is not
        finite.
        """

        def of(rows: Sequence[int]) -> Sequence[torch.Tensor]:
            return self._losses(rows, prefixes, texts, scored)

        self.count.forward_sequences += len(texts)
        return self._in_batches(of, _lengths(prefixes, texts))

    def _losses(
        self, rows: Sequence[int], prefixes: Tokens, texts: Tokens, scored: Scored | None
    ) -> Sequence[torch.Tensor]:
        """`losses` of one batch."""
        tokens_BL = self._read(rows, prefixes, texts)
        wanted_BL = _wanted(tokens_BL, rows, prefixes, texts, scored)
        losses_N = self._losses_at(self._states(input_ids=tokens_BL[:, :-1]), tokens_BL[:, 1:], wanted_BL)
        return finite(losses_N).split(wanted_BL.sum(1).tolist())

    @torch.no_grad()
    def variant_losses(self, text: Sequence[int], variants: Tokens, scored_L: torch.Tensor) -> list[torch.Tensor]:
        """The same as `losses` of `variants`, which are of the length of `text` and begin as it does, but faster.

        Attention is causal: up to the first token that differs, a variant's hidden states, keys and values are those
        of `text`, which is read once. Every variant counts as a forward sequence all the same, however little of it
        is run anew, and the reading of `text` as none: a budget is what was asked, not how cleverly it was answered.
        """
        common = [_common_tokens(text, variant) for variant in variants]
        batch = min(self.batch, max(SMALLEST_BATCH, math.ceil(len(variants) / SHARED_BATCHES)))
        on_cpu = self.device.type == "cpu"  # a GPU reads 100 whole texts in less time than their ends in small passes
        if not on_cpu or self.head is None or _share_read(common, len(text), batch) > SHARING_PAYS:
            return self.losses([[]] * len(variants), variants, [scored_L] * len(variants))
        own_1L, scored_1L = self._read([0], [[]], [text]), scored_L.to(self.device)[None]
        cache = DynamicCache()
        own_N = finite(self._losses_at(self._states(cache, input_ids=own_1L[:, :-1]), own_1L[:, 1:], scored_1L))

        def of(rows: Sequence[int]) -> list[torch.Tensor]:
            # the token before the first that differs is read anew, which predicts it
            start = min(common[row] for row in rows)
            tokens_BL = self._read(rows, [[]] * len(variants), variants)[:, start:]
            wanted_BL = scored_1L[:, start:].expand(len(rows), -1)
            states_BLD = self._states(_first_of(cache, start, len(rows)), input_ids=tokens_BL[:, :-1])
            losses_N = self._losses_at(states_BLD, tokens_BL[:, 1:], wanted_BL)
            before_N = own_N[: int(scored_L[:start].sum())]
            return [torch.cat([before_N, later_N]) for later_N in finite(losses_N).view(len(rows), -1)]

        self.count.forward_sequences += len(variants)
        return self._in_batches(of, common, batch)

    def gradients(self, prefixes: Tokens, texts: Tokens, scored: Scored) -> list[torch.Tensor]:
        """Gradient of the summed loss of each sequence with respect to its embeddings, fp32 [prefix + text, D].

        On the model's device.
        """

        def of(rows: Sequence[int]) -> list[torch.Tensor]:
            return self._gradients(rows, prefixes, texts, scored)

        self.count.forward_sequences += len(texts)
        self.count.backward_sequences += len(texts)
        return self._in_batches(of, _lengths(prefixes, texts))

    def _gradients(self, rows: Sequence[int], prefixes: Tokens, texts: Tokens, scored: Scored) -> list[torch.Tensor]:
        """`gradients` of one batch."""
        tokens_BL = self._read(rows, prefixes, texts)
        wanted_BL = _wanted(tokens_BL, rows, prefixes, texts, scored)
        embedded_BLD = self.embeddings_VD[tokens_BL[:, :-1]].detach().requires_grad_()
        states_BLD = self._states(inputs_embeds=self.cast(embedded_BLD))
        self._losses_at(states_BLD, tokens_BL[:, 1:], wanted_BL).sum().backward()
        # the last token is read by no prediction, so its gradient is zero and no part of the input
        gradient_BLD = nn.functional.pad(embedded_BLD.grad, (0, 0, 0, 1))
        ends = [1 + len(prefixes[row]) + len(texts[row]) for row in rows]
        return [own_LD[1:end] for own_LD, end in zip(gradient_BLD, ends, strict=True)]

    def _states(self, cache: DynamicCache | None = None, **read: torch.Tensor) -> torch.Tensor:
        """Input of the head, [B, L, D]: the last hidden states; of a network that is run whole, its logits.

        `read` stands behind the tokens of `cache`, and is added to it.
        """
        if self.head is None:
            return self.model(**read).logits
        if self.body is not None and cache is None:
            return self.body(**read)
        return self.model.base_model(**read, past_key_values=cache, use_cache=cache is not None).last_hidden_state

    def _losses_at(self, states_BLD: torch.Tensor, targets_BL: torch.Tensor, wanted_BL: torch.Tensor) -> torch.Tensor:
        """-log p of the wanted targets, fp32 [N], row after row. Few logits exist at a time."""
        targets_N = targets_BL[wanted_BL]
        weight_VD, parts = None if self.head is None else self.head.weight, []
        some = zip(states_BLD[wanted_BL].split(ROWS_OF_LOGITS), targets_N.split(ROWS_OF_LOGITS), strict=True)
        for states_ND, own_N in some:
            logits_NV = states_ND if weight_VD is None else nn.functional.linear(states_ND, weight_VD)
            parts.append(nn.functional.cross_entropy(logits_NV.float(), own_N, reduction="none"))
        return torch.cat(parts)

    def _in_batches(
        self, scored: Callable[[list[int]], Sequence[torch.Tensor]], sizes: list[int], batch: int | None = None
    ) -> list[torch.Tensor]:
        """What `scored` gives for all sequences, a batch at a time, in their order; batches are of like sizes."""
        batch = batch or self.batch
        order = sorted(range(len(sizes)), key=sizes.__getitem__)
        parts: dict[int, torch.Tensor] = {}
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            parts |= zip(rows, halved_until_it_fits(scored, rows), strict=True)
        return [parts[row] for row in range(len(sizes))]

    def _read(self, rows: Sequence[int], prefixes: Tokens, texts: Tokens) -> torch.Tensor:
        """Input of the model for these sequences, filled up on the right."""
        sequences = [[self.end_of_text, *prefixes[row], *texts[row]] for row in rows]
        return filled_up(sequences, self.end_of_text).to(self.device)

    def cast(self, embedded_BLD: torch.Tensor) -> torch.Tensor:
        """Casts to what the model reads; a gradient comes back in fp32."""
        return embedded_BLD.bfloat16() if self.precision == "bf16" else embedded_BLD


def _in_bf16(model: nn.Module) -> nn.Module:
    """A copy with such weights. Its buffers stay as they are, among them the frequencies of rotary positions."""
    copied = copy.deepcopy(model)
    for weight in copied.parameters():
        weight.data = weight.data.bfloat16()
    return copied


def _head(model: nn.Module) -> nn.Linear | None:
    """The output embeddings, where logits may be computed by them alone; None: the network is run whole."""
    if getattr(getattr(model, "config", None), "model_type", None) not in SPLIT_ARCHITECTURES:
        return None
    head = model.get_output_embeddings()
    return head if type(head) is nn.Linear and head.bias is None else None


def _wanted(
    tokens_BL: torch.Tensor, rows: Sequence[int], prefixes: Tokens, texts: Tokens, scored: Scored | None
) -> torch.Tensor:
    """Which predictions are scored, bool [B, L - 1]: never one of a prefix or of the padding."""
    wanted_BL = torch.zeros(tokens_BL.shape[0], tokens_BL.shape[1] - 1, dtype=torch.bool)
    for place, row in enumerate(rows):
        start = len(prefixes[row])
        wanted_BL[place, start : start + len(texts[row])] = True if scored is None else scored[row]
    return wanted_BL.to(tokens_BL.device)


def finite(losses_N: torch.Tensor) -> torch.Tensor:
    """The same on the CPU, float64; CheckFailed where one is not finite."""
    if not losses_N.isfinite().all():
        raise CheckFailed("every loss under attack is a finite number", "infinite or not a number", "finite")
    return losses_N.double().cpu()


def _lengths(prefixes: Tokens, texts: Tokens) -> list[int]:
    return [len(prefix) + len(text) for prefix, text in zip(prefixes, texts, strict=True)]


def _common_tokens(text: Sequence[int], variant: Sequence[int]) -> int:
    """Number of tokens that both begin with; at most all but the last."""
    pairs = zip(text[:-1], variant[:-1], strict=True)
    return next((place for place, (own, other) in enumerate(pairs) if own != other), len(text) - 1)


def _share_read(common: Sequence[int], length: int, batch: int) -> float:
    """Tokens to read, as a share of all: one text whole, each batch of variants from where its first one differs."""
    ordered = sorted(common)
    read = sum(length - ordered[place - place % batch] for place in range(len(ordered)))
    return (length + read) / (length * len(ordered))


def _first_of(cache: DynamicCache, tokens: int, sequences: int) -> DynamicCache | None:
    """Keys and values of the first `tokens` of one sequence, for so many sequences; None of none."""
    if tokens == 0:
        return None
    return DynamicCache(
        [
            tuple(part[:, :, :tokens].expand(sequences, -1, -1, -1) for part in (keys, values))
            for keys, values, _ in cache
        ]
    )


def halved_until_it_fits(of: Callable[[list[int]], Sequence[torch.Tensor]], rows: list[int]) -> Sequence[torch.Tensor]:
    """`of(rows)`, in halves where memory does not hold all; the error itself where one does not fit.

    A batch is tried whole every time and never remembered as too large, so that how it is cut, and with it rounding,
    does not depend on what an attempt did before.
    """
    try:
        return of(rows)
    except (RuntimeError, MemoryError) as error:
        if len(rows) == 1 or not is_out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # after the exception, whose frames hold the tensors
    half = len(rows) // 2
    return [*halved_until_it_fits(of, rows[:half]), *halved_until_it_fits(of, rows[half:])]


def replaced(ids: Sequence[int], position: int, token: int) -> Sequence[int]:
    """`ids` with `token` at `position`; of a text with the rest of it."""
    return rewritten(ids, [*ids[:position], token, *ids[position + 1 :]])


def rewritten(ids: Sequence[int], tokens: list[int]) -> Sequence[int]:
    """`tokens` in place of `ids`; of a text with the rest of it."""
    return replace(ids, tokens=tokens) if isinstance(ids, Text) else tokens
