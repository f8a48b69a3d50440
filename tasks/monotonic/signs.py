"""Which sign every constrained weight may have, made from the base model once and kept on disk."""

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

from storage.errors import BadInput
from tasks.monotonic.configuration import Signs
from tasks.monotonic.constraint import constrained_modules, matrix

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FILE = "signs.safetensors"
PER_UNIT_VARIANT = "mlp_both"


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
        for name, layer in layers.items():
            shape = tuple(layer.weight.shape)
            try:
                fits = torch.broadcast_shapes(self.layers[name].shape, shape) == shape
            except RuntimeError:
                fits = False
            if not fits:
                raise BadInput(f"the signs of {name} are {tuple(self.layers[name].shape)} and its weights {shape}")
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

    `seeds` are those of random signs, and nothing to others.

    BadInput where `kind` is per-unit and the variant has no sublayer with both of its matrices constrained.
    """
    layers = constrained_modules(model, variant)
    if kind == "per-unit":
        return AllowedSigns(kind, _per_unit(layers, variant))
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


def _per_unit(layers: Mapping[str, nn.Module], variant: str) -> dict[str, torch.Tensor]:
    """One sign for each hidden unit, of its row of the input and its column of the output projection.

    A unit with the sign s computes s a act(s w x + b), a and w >= 0, which does not decrease in x if act does not: so
    the sublayer is as monotone as with s = +1 everywhere. A unit takes the s whose side of 0 holds more of the squared
    weights of the unit in the base model, + where they are equal.
    """
    if variant != PER_UNIT_VARIANT:
        raise BadInput(
            f"per-unit signs need a unit's input and output weights constrained, and constraint.variant {variant} "
            f"does not constrain both (or gates them): take {PER_UNIT_VARIANT}, or leave the arm out"
        )
    names, signs = list(layers), {}
    for into, out_of in zip(names[::2], names[1::2], strict=True):
        w_in_HD = matrix(layers[into], layers[into].weight).double()
        w_out_DH = matrix(layers[out_of], layers[out_of].weight).double()
        signed_squares_H = (w_in_HD * w_in_HD.abs()).sum(1) + (w_out_DH * w_out_DH.abs()).sum(0)
        signs_H = torch.where(signed_squares_H < 0, -1, 1).to(torch.int8).cpu()
        signs[into] = matrix(layers[into], signs_H[:, None])
        signs[out_of] = matrix(layers[out_of], signs_H[None, :])
    return signs
