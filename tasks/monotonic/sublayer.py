"""The feed-forward sublayers of a language model, seen as functions of their input; the slopes of activations.

Shape suffixes: N inputs, D width of the residual stream, H hidden units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy.special import expit, ndtr
from torch import nn

from storage.errors import BadInput, CheckFailed
from tasks.language.model import MONOTONE_PARTS, monotone_parts
from tasks.monotonic.constraint import constrained_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def _monotone_parts(z: np.ndarray) -> np.ndarray:
    unit, (convex, concave, _) = np.arange(z.shape[-1]), monotone_parts(z.shape[-1])
    low = np.where(unit < convex, 0.0, np.where(unit < convex + concave, -np.inf, -1.0))
    high = np.where(unit < convex, np.inf, np.where(unit < convex + concave, 0.0, 1.0))
    return np.minimum(np.maximum(z, low), high)


def _tanh_gelu(z: np.ndarray) -> np.ndarray:
    return 0.5 * z * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (z + 0.044715 * z**3)))


@dataclass(frozen=True)
class Activation:
    """`formula` in float64, the last axis being the hidden units; its slope lies in [`lowest_slope`, `highest_slope`].

    The bounds hold over all real numbers, rounded outwards in the fourth digit.
    """

    formula: Callable[[np.ndarray], np.ndarray]
    lowest_slope: float
    highest_slope: float


_TANH_GELU = Activation(_tanh_gelu, -0.1290, 1.1290)
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(lambda z: np.maximum(z, 0.0), 0.0, 1.0),
    MONOTONE_PARTS: Activation(_monotone_parts, 0.0, 1.0),
    # the slope Phi(z) + z phi(z) has its extremes at z = -sqrt(2) and sqrt(2): -0.128904 and 1.128904
    "gelu": Activation(lambda z: z * ndtr(z), -0.1290, 1.1290),
    "gelu_new": _TANH_GELU,
    "gelu_fast": _TANH_GELU,
    "gelu_pytorch_tanh": _TANH_GELU,
    "silu": Activation(lambda z: z * expit(z), -0.0999, 1.0999),
}
"""Activations by their name in a model's configuration (transformers' ACT2FN, and ours)."""


PROBES = 64
"""Numbers from -10 to 10 at which every hidden unit's activation is compared with the formula of its name."""


@dataclass(frozen=True)
class FeedForward:
    """One feed-forward sublayer: out(act(into(x))), or gated: down(act(gate(x)) * up(x)).

    `layers` are its Linear or Conv1D layers by attribute, those that read the input first; `constrained` are the
    attributes that the variant names. `activation` is its name in the model's configuration.
    """

    name: str
    module: nn.Module
    layers: dict[str, nn.Module]
    constrained: list[str]
    activation: str

    @property
    def gated(self) -> bool:
        return len(self.layers) == 3

    @property
    def act(self) -> nn.Module:
        """The activation itself; gated sublayers call it otherwise."""
        return self.module.act_fn if hasattr(self.module, "act_fn") else self.module.act

    @property
    def free(self) -> list[str]:
        """Attributes of the layers that the variant leaves alone."""
        return [attribute for attribute in self.layers if attribute not in self.constrained]

    @property
    def inputs(self) -> int:
        return self.matrices()[0].shape[1]

    @property
    def hidden(self) -> int:
        return self.matrices()[0].shape[0]

    def matrices(self) -> list[torch.Tensor]:
        """Weights, each [out, in] whatever the layer's own order is, detached."""
        weights = [(layer, layer.weight.detach()) for layer in self.layers.values()]
        return [weight if isinstance(layer, nn.Linear) else weight.T for layer, weight in weights]

    def in_float64(self, x_ND: np.ndarray) -> np.ndarray:
        """Its outputs [N, D] by its weights and the activation's formula: another program than `module`, in float64."""
        layers = [
            (weight.double().cpu().numpy(), 0.0 if layer.bias is None else layer.bias.detach().double().cpu().numpy())
            for weight, layer in zip(self.matrices(), self.layers.values(), strict=True)
        ]
        act = ACTIVATIONS[self.activation].formula
        *into, out = layers
        hidden_NH = act(product(x_ND, into[0][0]) + into[0][1])
        if self.gated:
            hidden_NH *= product(x_ND, into[1][0]) + into[1][1]
        return product(hidden_NH, out[0]) + out[1]


def product(x_NI: np.ndarray, weight_OI: np.ndarray) -> np.ndarray:
    """x W^T [N, O] in float64, by torch, whose kernels and threads a stage's numerics name.

    NumPy's OpenBLAS chooses its kernels by variables of the environment, which a job has not: the last digits differ.
    """
    return (torch.from_numpy(x_NI.astype(np.float64)) @ torch.from_numpy(weight_OI.astype(np.float64)).T).numpy()


def feed_forward_sublayers(model: PreTrainedModel, variant: str) -> list[FeedForward]:
    """The sublayers that hold a layer of `variant`, in the model's order.

    Errors as of `constrained_modules`; BadInput for an activation whose slope is not known here. CheckFailed when the
    variant names no weight of them, when a weight is not finite, or when an activation is not the one that the model's
    configuration names.
    """
    named = constrained_modules(model, variant)
    every_layer = constrained_modules(model, "gated_all" if variant.startswith("gated") else "mlp_both")
    by_parent: dict[str, dict[str, nn.Module]] = {}
    for name, layer in every_layer.items():
        parent, _, attribute = name.rpartition(".")
        by_parent.setdefault(parent, {})[attribute] = layer
    activation = _activation_name(model)
    sublayers = [
        FeedForward(name, model.get_submodule(name), layers, [a for a in layers if f"{name}.{a}" in named], activation)
        for name, layers in by_parent.items()
    ]
    sublayers = [sublayer for sublayer in sublayers if sublayer.constrained]
    if not sublayers:
        raise CheckFailed(
            f"{variant} names weights of feed-forward sublayers in {type(model).__name__}", 0, "1 or more"
        )
    for sublayer in sublayers:
        _require_as_named(sublayer)
    return sublayers


def _activation_name(model: PreTrainedModel) -> str:
    named = ("hidden_act", "activation_function", "dense_act_fn")
    name = str(next(filter(None, (getattr(model.config, attribute, None) for attribute in named)), None))
    if name not in ACTIVATIONS:
        raise BadInput(
            f"the slope of the activation {name} of {type(model).__name__} is not known, so its sublayers cannot be "
            f"examined: use a model with one of {', '.join(ACTIVATIONS)}, or add it to tasks/monotonic/sublayer.py"
        )
    return name


def _require_as_named(sublayer: FeedForward) -> None:
    for attribute, weight in zip(sublayer.layers, sublayer.matrices(), strict=True):
        if not torch.isfinite(weight).all():
            raise CheckFailed(f"every weight of {sublayer.name}.{attribute} is finite", "one that is not", "finite")
    probes = np.repeat(np.linspace(-10.0, 10.0, PROBES)[:, None], sublayer.hidden, axis=1)
    with torch.no_grad():
        values = sublayer.act(torch.from_numpy(probes)).numpy()
    difference = float(np.abs(values - ACTIVATIONS[sublayer.activation].formula(probes)).max())
    if not difference < 1e-9:
        raise CheckFailed(
            f"the activation of {sublayer.name} is {sublayer.activation}, as the model's configuration says",
            f"a difference of {difference:.3g}",
            "less than 1e-9",
        )
