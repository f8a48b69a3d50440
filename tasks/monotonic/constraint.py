"""Which layers a variant constrains, and the proof that their weights have the signs that they may have.

W >= 0 (Cooper et al., arXiv 2602.02686) makes a feed-forward sublayer monotone only under a non-decreasing
activation; GELU, which GPT-NeoX and GPT-2 use, decreases below about -0.75. A gated sublayer (Llama, Qwen),
W_down(SiLU(W_gate x) * W_up x), is covered by no theorem at all: SiLU decreases below about -1.28, and a product of
two functions that grow need not grow where one of them is negative, even with all three matrices non-negative. So it
constrains weights of named sublayers: never a claim that the model, or even the sublayer, is a monotone function.

Under LayerNorm (GPT-NeoX, GPT-2) W >= 0 in both matrices does not even restrict what the network can compute. What a
LayerNorm with scale g gives lies in a plane sum(x / g) = const, so c / g may be added to each row of W_in, its bias
paying for it; and c to each column of W_out, since every later reader takes the mean of the residual stream away. No
two points of such a plane are ordered, either. Random signs, and RMSNorm (Llama, Qwen, T5), leave no such way out.

T5 v1.0 has ReLU, no bias and RMSNorm: there W >= 0 makes each sublayer monotone in what its RMSNorm gives it (not in
what that is given), and does restrict it; T5 v1.1 is gated.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, cast

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from storage.errors import BadInput, CheckFailed
from tasks.monotonic.arm import ARCHITECTURES
from tasks.monotonic.result import VerifiedWeights
from tasks.monotonic.stages import Signs

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def constrained_modules(model: PreTrainedModel, variant: str) -> dict[str, nn.Module]:
    """Dotted name -> the layer, a Linear or Conv1D, for every layer that `variant` names.

    BadInput when the architecture is unknown or has no such variant; CheckFailed when a transformer block of the
    model lacks the sublayer, or has two.
    """
    return {
        f"{name}.{attribute}": getattr(holder, attribute)
        for name, (holder, attributes) in _holders(model, variant).items()
        for attribute in attributes
    }


def constrained_sublayers(model: PreTrainedModel, variant: str) -> dict[str, nn.Module]:
    """Dotted name -> the feed-forward module of each constrained layer, which maps token by token; errors as above."""
    return {name: holder for name, (holder, _) in _holders(model, variant).items()}


def _holders(model: PreTrainedModel, variant: str) -> dict[str, tuple[nn.Module, list[str]]]:
    """Dotted name -> (the sublayer that holds constrained layers, its attributes that are these)."""
    architecture = _architecture(model, variant)
    variants = ARCHITECTURES[architecture]
    if variant not in variants:
        raise BadInput(
            f"constraint.variant {variant} does not exist in {type(model).__name__} (architecture {architecture}), "
            f"which has {', '.join(variants)}: set constraint.variant to one of these"
        )
    by_name: dict[str, tuple[nn.Module, list[str]]] = {}
    expected = model.config.num_hidden_layers + getattr(model.config, "num_decoder_layers", 0)
    for kind, attributes in variants[variant].items():
        holders = {name: module for name, module in model.named_modules() if _is(module, architecture, kind)}
        kinds = {type(module).__name__ for module in model.modules()}
        fitting = [name for name, classes in variants.items() if classes.keys() <= kinds]
        if not holders and fitting:
            raise BadInput(
                f"constraint.variant {variant} names {kind}, which {type(model).__name__} has none of: set "
                f"constraint.variant to one of {', '.join(fitting)}"
            )
        if len(holders) != expected:
            raise CheckFailed(
                f"{type(model).__name__} has one {kind} in each of its transformer blocks", len(holders), expected
            )
        by_name |= {name: (holder, attributes) for name, holder in holders.items()}
    return by_name


def _architecture(model: PreTrainedModel, variant: str) -> str:
    """The model's architecture, as transformers calls it; BadInput where it is not known here."""
    named = getattr(getattr(model, "config", None), "model_type", "")
    if named not in ARCHITECTURES:
        raise BadInput(
            f"constraint.variant {variant} matches no layer of {type(model).__name__}: known architectures are "
            f"{', '.join(ARCHITECTURES)}. Use a model of one of these"
        )
    return named


def _is(module: nn.Module, architecture: str, kind: str) -> bool:
    """True where the module is of exactly this class of transformers."""
    home = f"transformers.models.{architecture}.modeling_{architecture}"
    return type(module).__name__ == kind and type(module).__module__ == home


def matrix(layer: nn.Module, tensor: torch.Tensor) -> torch.Tensor:
    """A view of a tensor of the shape of the layer's weight as [out, in], which for a Conv1D is transposed."""
    return tensor if isinstance(layer, nn.Linear) else tensor.T


@torch.no_grad()
def verify(model: PreTrainedModel, variant: str, allowed: AllowedSigns) -> VerifiedWeights:
    """Reads the effective weight of every layer that `variant` names; CheckFailed unless each has its allowed sign.

    CheckFailed also when a weight is not finite, and when there was nothing to check. Works on parametrized and on
    baked models alike, because it reads `module.weight`, never the stored parameters.
    """
    layers = constrained_modules(model, variant)
    checked = sum(layer.weight.numel() for layer in layers.values())
    if not checked:
        raise CheckFailed(f"{variant} names layers with weights to verify", 0, "1 at least")
    signs = allowed.of(layers)
    largest, smallest, zeros = -torch.inf, torch.inf, 0
    for name, layer in layers.items():
        weight, sign = layer.weight.detach(), signs[name].to(layer.weight.device)
        wrong = torch.where(sign == 0, weight.abs(), -sign * weight).max().item()
        if not wrong <= 0 or not torch.isfinite(weight).all():
            raise CheckFailed(f"every weight of {name} is finite and of its allowed sign ({allowed.kind})", wrong, 0)
        smallest, largest = min(smallest, weight.min().item()), max(largest, weight.max().item())
        zeros += int((weight == 0).sum())
    return VerifiedWeights(
        layers=sorted(layers),
        weights_checked=checked,
        min_weight=smallest,
        max_weight=largest,
        share_of_zeros=zeros / checked,
    )


FILE = "signs.safetensors"


@dataclass(frozen=True)
class AllowedSigns:
    """Layer name -> the signs of its weights: int8, -1, 0 (the weight is 0) or +1, broadcast to the weight's shape.

    Where one number says it for the whole matrix, that is all there is: nothing of the model's size.
    """

    kind: Signs
    layers: dict[str, torch.Tensor]

    def of(self, layers: Mapping[str, nn.Module]) -> dict[str, torch.Tensor]:
        """The signs of `layers`, which must be the ones that these were made for; BadInput else."""
        if odd := sorted(self.layers.keys() ^ layers.keys()):
            raise BadInput(
                f"the signs were made for {len(self.layers)} layers and the model has {len(layers)} of them; "
                f"{odd[0]} is on one side only: constrain a model of this architecture and variant"
            )
        return self.layers

    def save(self, folder: Path) -> None:
        """Writes `signs.safetensors` into `folder`: one int8 tensor for each layer, and the kind as metadata."""
        tensors = {name: signs.clone(memory_format=torch.contiguous_format) for name, signs in self.layers.items()}
        save_file(tensors, folder / FILE, metadata={"signs": self.kind})

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Reads what `save` wrote, on the CPU; BadInput where it is something else."""
        with safe_open(folder / FILE, framework="pt") as file:
            if "signs" not in (metadata := file.metadata() or {}):
                raise BadInput(f"{folder / FILE} does not say which signs it holds: constrain did not write it")
            layers = {name: file.get_tensor(name) for name in sorted(file.keys())}
            return cls(cast(Signs, metadata["signs"]), layers)


@torch.no_grad()
def signs_of(model: PreTrainedModel, variant: str, kind: Signs, seeds: Sequence[int] = ()) -> AllowedSigns:
    """The signs that `kind` gives the layers of `variant`; `model` is the base model, with its own weights.

    `seeds` are those of random signs, and nothing to others; per-unit signs are of a variant with both matrices.
    """
    layers = constrained_modules(model, variant)
    if kind == "per-unit":
        return AllowedSigns(kind, _per_unit(layers))
    if kind == "own":
        positive = torch.ones((), dtype=torch.int8)
        own = {
            name: torch.where(layer.weight.detach().cpu() < 0, -positive, positive) for name, layer in layers.items()
        }
        return AllowedSigns(kind, own)
    if kind == "random":
        return AllowedSigns(kind, {name: _drawn(name, layer.weight.shape, seeds) for name, layer in layers.items()})
    return AllowedSigns(kind, {name: torch.tensor(0 if kind == "off" else 1, dtype=torch.int8) for name in layers})


@torch.no_grad()
def project(weight: torch.Tensor, signs: torch.Tensor) -> None:
    """W <- s max(s W, 0) in place: the nearest weights of the signs s. Waits for no GPU."""
    weight.mul_(signs).clamp_(min=0).mul_(signs)


def _drawn(name: str, shape: torch.Size, seeds: Sequence[int]) -> torch.Tensor:
    """-1 or +1 for each weight, from the layer's name and the seeds: bits of Philox, the same on every machine."""
    what = f"random signs of {name}, {', '.join(map(str, seeds))}"
    key = np.frombuffer(hashlib.sha256(what.encode()).digest()[:16], dtype="<u8")
    words = np.random.Philox(key=key).random_raw(-(-shape.numel() // 64)).astype("<u8")
    bits = np.unpackbits(words.view(np.uint8), count=shape.numel()).astype(np.int8)
    return torch.from_numpy(2 * bits - 1).view(shape)


def _per_unit(layers: Mapping[str, nn.Module]) -> dict[str, torch.Tensor]:
    """One sign for each hidden unit, of its row of the input and its column of the output projection.

    A unit with the sign s computes s a act(s w x + b), a and w >= 0, which does not decrease in x if act does not: so
    the sublayer is as monotone as with s = +1 everywhere. A unit takes the s whose side of 0 holds more of the squared
    weights of the unit in the base model, + where they are equal.
    """
    names, signs = list(layers), {}
    for into, out_of in zip(names[::2], names[1::2], strict=True):
        w_in_HD = matrix(layers[into], layers[into].weight).double()
        w_out_DH = matrix(layers[out_of], layers[out_of].weight).double()
        signed_squares_H = (w_in_HD * w_in_HD.abs()).sum(1) + (w_out_DH * w_out_DH.abs()).sum(0)
        signs_H = torch.where(signed_squares_H < 0, -1, 1).to(torch.int8).cpu()
        signs[into] = matrix(layers[into], signs_H[:, None])
        signs[out_of] = matrix(layers[out_of], signs_H[None, :])
    return signs
