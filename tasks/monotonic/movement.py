"""How far training moved the constrained weights, beside the free matrices of the same model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tasks.monotonic.constraint import constrained_modules
from tasks.monotonic.result import Movement

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def measure_movement(model: PreTrainedModel, variant: str, start: PreTrainedModel) -> Movement:
    """How far the effective weights of `model` lie from those of `start`, the model that its training began with.

    The yardstick of a parametrized layer is the free matrices, which AdamW steps directly. Held besides is one fp32
    number for each weight of a matrix, on the CPU.
    """
    layers = constrained_modules(model, variant)
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    constrained: dict[str, np.ndarray] = {}
    free: list[np.ndarray] = []
    zeros = left = 0
    for name, module in start.named_modules():
        weight, there = getattr(module, "weight", None), model.get_submodule(name)
        if weight is None or weight.ndim < 2 or there in embeddings:
            continue
        before, now = (found.weight.detach().to("cpu", torch.float32) for found in (module, there))
        if name in layers:
            constrained[name] = _relative(before, now)
            still = before == 0
            zeros, left = zeros + int(still.sum()), left + int((now[still] != 0).sum())
        else:
            free.append(_relative(before, now))
    return Movement(
        constrained=_median(list(constrained.values())),
        free=_median(free),
        constrained_by_layer={name: _median([moved]) for name, moved in sorted(constrained.items())},
        share_of_zeros_left=left / zeros if zeros else None,
    )


def _relative(before: torch.Tensor, now: torch.Tensor) -> np.ndarray:
    """|change| over |start| of every weight that did not start at 0; [their number]."""
    began = before != 0
    return ((now - before).abs()[began] / before.abs()[began]).numpy()


def _median(parts: list[np.ndarray]) -> float | None:
    values = np.concatenate(parts) if parts else np.empty(0)
    return float(np.median(values, overwrite_input=len(parts) > 1)) if values.size else None
