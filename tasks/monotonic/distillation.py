"""Weights of given signs that reproduce a layer's outputs best: least squares on calibration text, layer by layer.

Shape suffixes: B examples, L tokens, T tokens of a batch, I inputs and O outputs of a layer.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from storage.errors import CheckFailed
from tasks.monotonic.constraint import constrained_modules, matrix
from tasks.monotonic.signs import AllowedSigns, project

if TYPE_CHECKING:
    from transformers import PreTrainedModel

MAX_ITERATIONS = 1000
CHECK_EVERY_ITERATIONS = 20
SMALLEST_CHANGE = 1e-6
"""The search ends when no weight matrix changes by more than this share of its norm in one iteration."""


@dataclass
class Moments:
    """Sums over tokens that a least squares fit needs, float64: of inputs x, targets y, and their products."""

    tokens: int
    x_I: torch.Tensor
    y_O: torch.Tensor
    xx_II: torch.Tensor
    yx_OI: torch.Tensor

    @classmethod
    def of(cls, x_TI: torch.Tensor, y_TO: torch.Tensor) -> Moments:
        x_TI, y_TO = x_TI.double(), y_TO.double()
        return cls(len(x_TI), x_TI.sum(0), y_TO.sum(0), x_TI.T @ x_TI, y_TO.T @ x_TI)

    def __add__(self, other: Moments) -> Moments:
        return Moments(*(getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__))

    def centred(self) -> Moments:
        """The same about the means: what is left to fit when a bias takes the means."""
        xx_II = self.xx_II - torch.outer(self.x_I, self.x_I) / self.tokens
        yx_OI = self.yx_OI - torch.outer(self.y_O, self.x_I) / self.tokens
        return Moments(self.tokens, self.x_I, self.y_O, xx_II, yx_OI)


@torch.no_grad()
def distill(
    model: PreTrainedModel, variant: str, allowed: AllowedSigns, calibration_BL: torch.Tensor, batch_examples: int
) -> None:
    """Fits every layer of `variant`, in the order of a forward pass, in place; `model` is the base model.

    A layer's inputs are those of the network as constrained so far, its targets the outputs of the same layer in the
    base model, so that what the layers before it lost is made good where that is possible. A bias is fitted too. The
    sums of a fit are [in, in] and [out, in]; the weights are held twice, which is half of what a training holds.
    """
    layers = constrained_modules(model, variant)
    signs = allowed.of(layers)
    base = copy.deepcopy(model)
    targets = constrained_modules(base, variant)
    device = next(model.parameters()).device
    batches = [batch.to(device) for batch in calibration_BL.split(batch_examples)]
    for name in _forward_order(model, layers, batches[0][:1]):
        layer, moments = layers[name], None
        for tokens_BL in batches:
            x_TI, _ = _at_layer(model, layer, tokens_BL)
            _, y_TO = _at_layer(base, targets[name], tokens_BL)
            found = Moments.of(x_TI, y_TO)
            moments = found if moments is None else moments + found
        assert moments is not None
        signs_OI = matrix(layer, signs[name].to(device).expand(layer.weight.shape))
        _fit_layer(layer, moments, signs_OI)


def _forward_order(model: nn.Module, layers: Mapping[str, nn.Module], tokens_BL: torch.Tensor) -> list[str]:
    """The names of `layers` in the order in which a forward pass reaches them."""
    order: list[str] = []
    handles = [layer.register_forward_hook(lambda *_, name=name: order.append(name)) for name, layer in layers.items()]
    try:
        model(input_ids=tokens_BL)
    finally:
        for handle in handles:
            handle.remove()
    if sorted(order) != sorted(layers):
        raise CheckFailed("a forward pass reaches every constrained layer once", len(order), len(layers))
    return order


class _Reached(Exception):
    """Ends a forward pass at a layer: what comes after it is not needed."""


def _at_layer(model: nn.Module, layer: nn.Module, tokens_BL: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and outputs of the layer, [T, I] and [T, O]."""
    found: list[torch.Tensor] = []

    def stop(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        found.extend([inputs[0].flatten(0, -2), output.flatten(0, -2)])
        raise _Reached

    handle = layer.register_forward_hook(stop)
    try:
        model(input_ids=tokens_BL)
    except _Reached:
        pass
    finally:
        handle.remove()
    return found[0], found[1]


def _fit_layer(layer: nn.Module, moments: Moments, signs_OI: torch.Tensor) -> None:
    """Gives the layer its fitted weight and, where it has one, bias."""
    fitted = moments if layer.bias is None else moments.centred()
    weight_OI = matrix(layer, layer.weight)
    weight_OI.copy_(signed_least_squares(fitted.xx_II, fitted.yx_OI, signs_OI, weight_OI.double()))
    if layer.bias is not None:
        layer.bias.copy_((moments.y_O - weight_OI.double() @ moments.x_I) / moments.tokens)


def signed_least_squares(
    xx_II: torch.Tensor, yx_OI: torch.Tensor, signs_OI: torch.Tensor, start_OI: torch.Tensor
) -> torch.Tensor:
    """argmin |Y - X W^T|^2 over W [O, I] with the signs s, from X^T X and Y^T X, all float64.

    Accelerated projected gradient (Beck and Teboulle, "FISTA", 2009) with a restart of each row where the momentum
    points uphill (O'Donoghue and Candes, 2015), inputs scaled to equal norm. Rows are problems of their own. It begins
    at s max(s W, 0) of `start_OI`.
    """
    scale_I = xx_II.diagonal().clamp_min(0).sqrt()
    scale_I = torch.where(scale_I > 0, scale_I, 1.0)
    gram_II, target_OI = xx_II / torch.outer(scale_I, scale_I), yx_OI / scale_I
    curvature = torch.linalg.eigvalsh(gram_II)[-1].clamp_min(torch.finfo(torch.float64).tiny)
    start_OI = start_OI * scale_I
    project(start_OI, signs_OI)
    now_OI, ahead_OI, momentum_O1 = start_OI, start_OI, torch.ones_like(start_OI[:, :1])
    for iteration in range(1, MAX_ITERATIONS + 1):
        next_OI = ahead_OI - (ahead_OI @ gram_II - target_OI) / curvature
        project(next_OI, signs_OI)
        uphill_O1 = ((ahead_OI - next_OI) * (next_OI - now_OI)).sum(1, keepdim=True) > 0
        grown_O1 = (1 + (1 + 4 * momentum_O1**2).sqrt()) / 2
        ahead_OI = next_OI + torch.where(uphill_O1, 0.0, (momentum_O1 - 1) / grown_O1) * (next_OI - now_OI)
        momentum_O1 = torch.where(uphill_O1, 1.0, grown_O1)
        change_OI, now_OI = next_OI - now_OI, next_OI
        if iteration % CHECK_EVERY_ITERATIONS == 0 and change_OI.norm() <= SMALLEST_CHANGE * now_OI.norm():
            break
    return now_OI / scale_I
