"""What a loop of one's own keeps to go on: values with tensors in them, and all generators."""

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from storage.checkpoints import Checkpoint
from storage.errors import BadInput
from storage.inside import Name
from storage.tensors import DTYPES
from tasks.stage.generators import generator_numbers, generator_tensors, load_generators

Tensors = dict[str, torch.Tensor]
DICTIONARIES: dict[str, type] = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
"""Those of `state_dict()`s: a module's is an OrderedDict, `MultiStepLR` has a Counter."""
BIT_GENERATORS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
"""Those that a checkpoint may name: it is data, perhaps a stranger's."""


def packed(values: Mapping[str, Any]) -> tuple[dict[str, Tensors], dict[str, Any]]:
    """The groups of tensors and the JSON of a checkpoint; BadInput, with its place, for a value of another kind."""
    tensors: Tensors = {}
    state = {name: _pack(value, name, tensors) for name, value in values.items()}
    on_gpu = any(tensor.is_cuda for tensor in tensors.values())
    groups = {"values": tensors, "rng": generator_tensors(on_gpu)}
    return groups, {"values": state, "rng": generator_numbers()}


def unpacked(checkpoint: Checkpoint) -> dict[str, Any]:
    """The values, tensors on the CPU; the generators are as they were then."""
    tensors = checkpoint.tensors("values")
    load_generators(checkpoint.tensors("rng"), checkpoint.state["rng"])
    return {name: _unpack(value, tensors) for name, value in checkpoint.state["values"].items()}


def _pack(value: Any, place: str, tensors: Tensors) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str) or (kind is float and math.isfinite(value)):
        return value
    if kind is float:
        return {"float": str(value)}
    if kind in (torch.Tensor, torch.nn.Parameter) and value.is_leaf and _is_storable(value):
        name = _kept(value.detach().contiguous(), tensors)
        if kind is torch.nn.Parameter:
            return {"parameter": [name, value.requires_grad]}
        return {"leaf" if value.requires_grad else "tensor": name}
    if kind is np.ndarray or isinstance(value, np.bool_ | np.number):
        with suppress(TypeError, ValueError):  # text, objects, bytes in another order: no tensor holds them
            if _is_storable(array := torch.from_numpy(np.asarray(value).copy())):
                return {"array" if kind is np.ndarray else "scalar": _kept(array, tensors)}
    if kind in DICTIONARIES.values():
        pairs = [[_pack(key, place, tensors), _pack(own, f"{place}[{key!r}]", tensors)] for key, own in value.items()]
        return {kind.__name__: pairs}
    if kind in (list, tuple):
        return {kind.__name__: [_pack(own, f"{place}[{number}]", tensors) for number, own in enumerate(value)]}
    if kind is torch.Generator:
        return {"torch.Generator": [str(value.device), _kept(value.get_state(), tensors)]}
    bits: Any = value.bit_generator if kind is np.random.Generator else None
    if type(bits) in BIT_GENERATORS.values() and type(seeds := bits.seed_seq) is np.random.SeedSequence:
        return {"numpy.Generator": _pack([value.bit_generator.state, seeds.state], place, tensors)}
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        raise BadInput(f"run.save: {place} is a tensor with its graph of gradients, which is not kept: give .detach()")
    how = f" of {value.dtype}" if hasattr(value, "dtype") else ""
    raise BadInput(
        f"run.save: {place} is a {kind.__name__}{how}, which would not come back as it is: keep numbers, text, "
        "tensors, arrays, generators of NumPy and torch, and lists, tuples and dict of them, such as model.state_dict()"
    )


def _is_storable(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and str(tensor.dtype).removeprefix("torch.") in DTYPES


def _kept(tensor: torch.Tensor, tensors: Tensors) -> str:
    tensors[name := f"{len(tensors):05d}"] = tensor
    return name


def _unpack(value: Any, tensors: Tensors) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "float":
            return float(content)
        case "tensor":
            return tensors[content]
        case "leaf":
            return tensors[content].requires_grad_()
        case "parameter":
            return torch.nn.Parameter(tensors[content[0]], content[1])
        case "array":
            return tensors[content].numpy()
        case "scalar":
            return tensors[content].numpy()[()]
        case "torch.Generator":
            return torch.Generator(content[0]).set_state(tensors[content[1]])
        case "numpy.Generator":
            state, seeds = _unpack(content, tensors)
            bits = Name(state["bit_generator"]).of(BIT_GENERATORS, "generator of NumPy")(
                np.random.SeedSequence(**seeds)
            )
            bits.state = state
            return np.random.Generator(bits)
        case "list" | "tuple":
            parts = [_unpack(own, tensors) for own in content]
            return tuple(parts) if kind == "tuple" else parts
        case _:
            return Name(kind).of(DICTIONARIES, "value that run.save keeps")(
                {_unpack(key, tensors): _unpack(own, tensors) for key, own in content}
            )
