"""What influence needs to know of a model and its examples, and losses whose labels can be drawn from the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from storage.errors import CheckFailed

IGNORED = -100
"""The label of a position without a loss, as everywhere in torch."""


@dataclass(frozen=True)
class Task:
    """A model with examples: a classifier, a causal language model, an encoder-decoder.

    `batch(indices)` gives the examples at those indices (an integer array [B]), on the model's device.
    `losses(model, batch, generator)` gives the loss of each example, [B], each a sum over its tokens and independent of
    the others. Without a generator the labels are the true ones; with one they are drawn from the model's own
    prediction, as the Fisher information asks (`token_losses` does both).
    `positions(batch, module)` says which positions of a module's input [B, T, ...] are real ones, [B, T] bool; the
    rest is padding and does not count. An encoder-decoder answers by the module's name. None: every position is real.
    """

    model: nn.Module
    size: int
    batch: Callable[[np.ndarray], Any]
    losses: Callable[[nn.Module, Any, torch.Generator | None], torch.Tensor]
    positions: Callable[[Any, str], torch.Tensor | None] | None = None


def token_losses(logits: torch.Tensor, labels: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """The summed cross-entropy (nats) of each example, [B]; positions with the label -100 have none.

    `logits` are [B, classes] or [B, T, vocabulary], `labels` [B] or [B, T] (of the same positions: a causal model's
    caller shifts them). With a generator the labels are drawn from the logits, at the same positions.
    """
    flat, target = logits.flatten(0, -2), labels.flatten()
    if generator is not None:
        drawn = torch.multinomial(flat.detach().softmax(-1), 1, generator=generator)[:, 0]
        target = torch.where(target == IGNORED, target, drawn)
    return functional.cross_entropy(flat, target, ignore_index=IGNORED, reduction="none").view(len(labels), -1).sum(1)


def batches(indices: np.ndarray, size: int) -> list[np.ndarray]:
    """The indices, `size` at a time."""
    return [indices[first : first + size] for first in range(0, len(indices), size)]


def finite_losses(task: Task, batch: Any, indices: np.ndarray, generator: torch.Generator | None) -> torch.Tensor:
    """The losses [B]; CheckFailed names the examples whose loss is not finite, since they would spoil every factor."""
    losses = task.losses(task.model, batch, generator)
    if losses.shape != (len(indices),):
        raise CheckFailed("one loss an example", f"losses of shape {tuple(losses.shape)}", f"({len(indices)},)")
    wrong = [int(index) for index, fine in zip(indices, losses.isfinite().tolist(), strict=True) if not fine]
    if wrong:
        raise CheckFailed(
            f"the loss of example {', '.join(map(str, wrong[:20]))}",
            "not finite",
            "finite",
            "Look at its inputs and labels, or leave it out: influence computed with it would be NaN everywhere",
        )
    return losses
