"""Where constrained weights start: the base model's own, brought to their allowed signs before any training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tasks.monotonic.configuration import Start
from tasks.monotonic.constraint import constrained_modules
from tasks.monotonic.distillation import distill
from tasks.monotonic.shift import shift
from tasks.monotonic.signs import AllowedSigns, project

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def set_start(
    model: PreTrainedModel,
    variant: str,
    allowed: AllowedSigns,
    start: Start,
    calibration_BL: torch.Tensor,
    batch_examples: int,
) -> None:
    """Gives the layers of `variant` in the base model `model` weights of their allowed signs s, in place.

    positive-part: s max(s W, 0); absolute: s |W|; distilled: those that reproduce the layer's outputs best on
    `calibration_BL`, token ids of train text, read `batch_examples` at a time; shifted: W itself, moved up by what the
    network takes away again (for non-negative weights).
    """
    if start == "shifted":
        return shift(model, variant)
    if start == "distilled":
        return distill(model, variant, allowed, calibration_BL, batch_examples)
    layers = constrained_modules(model, variant)
    signs = allowed.of(layers)
    for name, layer in layers.items():
        sign = signs[name].to(layer.weight.device)
        if start == "absolute":
            layer.weight.abs_().mul_(sign)
        else:
            project(layer.weight, sign)
