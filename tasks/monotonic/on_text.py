"""How far feed-forward sublayers keep order at the inputs that text really gives them: a measurement, not a proof.

The order is that of hidden vectors, coordinate by coordinate. Text cannot be asked for it: a sublayer's inputs come out
of a LayerNorm and have, divided by its gain, the same mean, so that with a positive gain one lies below another only if
they are equal; and attention weighs by products that fall as easily as they rise. So ordered inputs are made from two
that were seen: x, and in each coordinate the larger of x and x', which no text need ever give.

Shape suffixes: T texts, L tokens, N inputs of a sublayer, D width of the residual stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from tasks.language.model import filled_up
from tasks.monotonic.result import OrderOnText
from tasks.monotonic.sublayer import FeedForward

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SEED = 0
ROUNDING = 1e-12
"""A change of an output that is smaller, as a share of the largest output, is none."""


def order_on_text(
    sublayers: Sequence[FeedForward],
    seen: dict[str, torch.Tensor],
    after_sublayer: Callable[[], None] = lambda: None,
) -> OrderOnText:
    """`seen`: sublayer -> two or more inputs [N, D], as of `seen_inputs`; the model is in evaluation."""
    rows = []
    for sublayer in sublayers:
        rows.append(_changes(sublayer, seen[sublayer.name]).ravel())
        after_sublayer()
    changes = np.concatenate(rows)
    size = float(np.abs(changes).sum())
    return OrderOnText(
        inputs=min(map(len, seen.values())),
        changes=len(changes),
        share=float((changes < 0).mean()),
        share_of_size=float(-changes.clip(max=0).sum()) / size if size else 0.0,
        lowest=float(changes.min()),
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
            sublayer.module.register_forward_pre_hook(lambda _, inputs, name=sublayer.name: keep(name, inputs[0]))
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


def _changes(sublayer: FeedForward, x_ND: torch.Tensor) -> np.ndarray:
    """Changes [N, D] of all outputs from x to max(x, x'), x' being the next seen input; by `in_float64`."""
    x = x_ND.double().cpu().numpy()
    before, after = sublayer.in_float64(x), sublayer.in_float64(np.maximum(x, np.roll(x, -1, axis=0)))
    changes = after - before
    changes[np.abs(changes) <= ROUNDING * np.abs(before).max()] = 0.0
    return changes
