"""The losses of whole documents, in a stated precision, and how a document is cut for its perplexity."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from storage.errors import BadInput
from tasks.language.configuration import Precision
from tasks.language.model import token_losses


@torch.no_grad()
def document_losses(
    model: nn.Module, documents: list[list[Window]], batch_size: int, precision: Precision = "fp32"
) -> np.ndarray:
    """Total loss of each document in nats, float64 [documents].

    Windows of all documents are batched by length, so that little is padded; a window's loss does not depend on
    its batch beyond rounding.
    """
    where = next(model.parameters()).device
    flat = [(number, window) for number, windows in enumerate(documents) for window in windows]
    flat.sort(key=lambda item: len(item[1].tokens))
    totals = np.zeros(len(documents))
    with computed_in(precision, where):
        for start in range(0, len(flat), batch_size):
            batch = flat[start : start + batch_size]
            longest = max(len(window.tokens) for _, window in batch)
            padded_BL = torch.zeros(len(batch), longest, dtype=torch.long)
            for row, (_, window) in enumerate(batch):
                padded_BL[row, : len(window.tokens)] = torch.tensor(window.tokens)
            losses_BL = token_losses(model, padded_BL.to(where)).double().cpu()
            for row, (number, window) in enumerate(batch):
                last = len(window.tokens) - 1
                totals[number] += losses_BL[row, last - window.scored : last].sum().item()
    return totals


def require_precision(precision: Precision, where: torch.device) -> None:
    """BadInput for one that this device has not."""
    if precision == "tf32" and where.type != "cuda":
        raise BadInput("evaluation_precision is tf32, which only a GPU has (Ampere or later): take fp32 or bf16 here")


@contextmanager
def computed_in(precision: Precision, where: torch.device) -> Iterator[None]:
    """Matrix products in this precision.

    bf16 is by autocast, as trainings have it: the sums between layers and the norms stay in fp32, however deep the
    network, and no copy of the weights is made. A copy, which the searches take, is 1.2 times as fast on a GPU.
    """
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    try:
        with torch.autocast(where.type, torch.bfloat16, enabled=precision == "bf16"):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@dataclass(frozen=True)
class Window:
    """Token ids as the model reads them, of which the last `scored` are predicted: `len(tokens) <= length + 1`."""

    tokens: list[int]
    scored: int


def rolling_windows(tokens: list[int], end_of_text: int, length: int) -> list[Window]:
    """The windows of one document; the `scored` of all add up to `len(tokens)`.

    The rolling rule of lm-evaluation-harness (`get_rolling_token_windows` with a context of one token): an end-of-text
    token stands in front; each window predicts the next `length` tokens; the last one predicts what remains and is
    filled up on its left with tokens that were predicted before.
    """
    stream = [end_of_text, *tokens]
    windows = []
    for first in range(1, len(stream), length):
        end = min(first + length, len(stream))
        begin = max(0, end - length - 1)
        windows.append(Window(stream[begin:end], end - first))
    return windows
