"""How far feed-forward sublayers keep order at the inputs that text really gives them: a measurement, not a proof.

The order is that of hidden vectors, coordinate by coordinate. Text cannot be asked for it: a sublayer's inputs come out
of a LayerNorm and have, divided by its gain, the same mean, so that with a positive gain one lies below another only if
they are equal; and attention weighs by products that fall as easily as they rise. So ordered inputs are made from two
that were seen: x, and in each coordinate the larger of x and x', which no text need ever give.

Shape suffixes: T texts, L tokens, N inputs of a sublayer, D width of the residual stream, C columns of a Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.func import jvp, vmap

from tasks.language.model import filled_up
from tasks.monotonic.result import Negatives, OrderOnText, SublayerOnText
from tasks.monotonic.sublayer import FeedForward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COLUMNS = 128
"""A wider sublayer's Jacobian is taken in so many directions, drawn once: a mean over entries needs no more."""
HIDDEN_VALUES = 1 << 22
"""Number of values of hidden units that are held at once."""
SEED = 0
ROUNDING = 1e-12
"""A change of an output that is smaller, as a share of the largest output, is none."""


@dataclass
class _Tally:
    """Counts and float64 sums of which `Negatives` are made."""

    numbers: int = 0
    below: int = 0
    size_below: float = 0.0
    size: float = 0.0
    lowest: float = np.inf

    def add(self, values: torch.Tensor) -> None:
        self.numbers += values.numel()
        self.below += int((values < 0).sum())
        self.size_below -= values.clamp_max(0).sum(dtype=torch.float64).item()
        self.size += values.abs().sum(dtype=torch.float64).item()
        self.lowest = min(self.lowest, values.min().item())

    @classmethod
    def of_all(cls, tallies: Sequence[_Tally]) -> _Tally:
        return cls(
            sum(one.numbers for one in tallies),
            sum(one.below for one in tallies),
            sum(one.size_below for one in tallies),
            sum(one.size for one in tallies),
            min(one.lowest for one in tallies),
        )

    def result(self) -> Negatives:
        return Negatives(
            numbers=self.numbers,
            share=self.below / self.numbers,
            share_of_size=self.size_below / self.size if self.size else 0.0,
            lowest=self.lowest,
        )


def order_on_text(
    sublayers: Sequence[FeedForward],
    seen: dict[str, torch.Tensor],
    after_sublayer: Callable[[], None] = lambda: None,
) -> OrderOnText:
    """`seen`: sublayer -> two or more inputs [N, D], as of `seen_inputs`; the model is in evaluation."""
    jacobians, rises = [], []
    for sublayer in sublayers:
        jacobians.append(_jacobian(sublayer, seen[sublayer.name]))
        rises.append(_rises(sublayer, seen[sublayer.name]))
        after_sublayer()
    return OrderOnText(
        inputs=min(map(len, seen.values())),
        jacobian=_Tally.of_all(jacobians).result(),
        rises=_Tally.of_all(rises).result(),
        sublayers=[
            SublayerOnText(sublayer=sublayer.name, jacobian=entries.result(), rises=changes.result())
            for sublayer, entries, changes in zip(sublayers, jacobians, rises, strict=True)
        ],
    )


@torch.no_grad()
def seen_inputs(
    model: PreTrainedModel,
    sublayers: Sequence[FeedForward],
    texts: Sequence[Sequence[int]],
    per_text: int,
    batch: int,
    written: Sequence[Sequence[int]] = (),
) -> dict[str, torch.Tensor]:
    """Sublayer -> its inputs [N, D] at up to `per_text` places of each text (token ids), the same for every model.

    The places are drawn once for the lengths of the texts; the model is in evaluation. `written` are the tokens that an
    encoder-decoder reads in its decoder: the places are among as many as both have.
    """
    chance = np.random.default_rng(SEED)
    lengths = [min(map(len, both)) for both in zip(texts, written, strict=True)] if written else [*map(len, texts)]
    places = [np.sort(chance.choice(length, size=min(per_text, length), replace=False)) for length in lengths]
    device = next(model.parameters()).device
    kept: dict[str, list[torch.Tensor]] = {sublayer.name: [] for sublayer in sublayers}
    for start in range(0, len(texts), batch):
        some, chosen = texts[start : start + batch], places[start : start + batch]
        rows = torch.tensor(np.repeat(np.arange(len(some)), [len(own) for own in chosen]), device=device)
        columns = torch.tensor(np.concatenate(chosen), device=device)

        def keep(name: str, x_TLD: torch.Tensor, at: tuple[torch.Tensor, torch.Tensor] = (rows, columns)) -> None:
            kept[name].append(x_TLD[at])

        hooks = [
            sublayer.module.register_forward_pre_hook(lambda _, given, name=sublayer.name: keep(name, given[0]))
            for sublayer in sublayers
        ]
        try:
            read = {"input_ids": filled_up(some, 0).to(device)}
            if written:
                read["attention_mask"] = filled_up([[1] * len(ids) for ids in some], 0).to(device)
                read["decoder_input_ids"] = filled_up(written[start : start + batch], 0).to(device)
            model.base_model(**read)  # without the head, whose logits nobody reads
        finally:
            for hook in hooks:
                hook.remove()
    return {name: torch.cat(parts) for name, parts in kept.items()}


def _jacobian(sublayer: FeedForward, x_ND: torch.Tensor) -> _Tally:
    tally = _Tally()
    for columns_CnD in jacobian_columns(sublayer, x_ND):
        tally.add(columns_CnD)
    return tally


@torch.no_grad()
def jacobian_columns(sublayer: FeedForward, x_ND: torch.Tensor) -> Iterable[torch.Tensor]:
    """Columns of the Jacobian at some inputs after others: [C, n, D], derivative of output d along direction c.

    Exact, by forward-mode differentiation; every column where there are at most COLUMNS. It costs two passes of the
    sublayer for each column and input: 9 GFLOP an input for weights of 2048 x 8192 and 128 columns.
    """
    width = x_ND.shape[1]
    chosen = np.sort(np.random.default_rng(SEED).permutation(width)[:COLUMNS])
    directions_CD = torch.eye(width)[torch.from_numpy(chosen)].to(x_ND)
    at_once = max(1, HIDDEN_VALUES // (len(chosen) * sublayer.hidden))
    for x_nD in x_ND.split(at_once):

        def along(direction_D: torch.Tensor, x_nD: torch.Tensor = x_nD) -> torch.Tensor:
            return jvp(sublayer.module, (x_nD,), (direction_D.expand_as(x_nD),))[1]

        yield vmap(along)(directions_CD)


def _rises(sublayer: FeedForward, x_ND: torch.Tensor) -> _Tally:
    """Changes of all outputs from x to max(x, x'), x' being the next seen input; by `in_float64`."""
    x = x_ND.double().cpu().numpy()
    before, after = sublayer.in_float64(x), sublayer.in_float64(np.maximum(x, np.roll(x, -1, axis=0)))
    changes = after - before
    changes[np.abs(changes) <= ROUNDING * np.abs(before).max()] = 0.0
    tally = _Tally()
    tally.add(torch.from_numpy(changes))
    return tally
