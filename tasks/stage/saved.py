"""What a loop of one's own keeps to go on: values with tensors in them, and all generators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from storage.checkpoints import Checkpoint
from storage.errors import BadInput
from tasks.stage.generators import generator_numbers, generator_tensors, load_generators

Tensors = dict[str, torch.Tensor]


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
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, float):
        return {"float": str(value)}
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        tensor = value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value).copy())
        name = f"{len(tensors):05d}"
        tensors[name] = tensor.detach().contiguous()
        return {"tensor" if value is tensor else "array": name}
    if isinstance(value, Mapping):
        pairs = [[_pack(key, place, tensors), _pack(own, f"{place}[{key!r}]", tensors)] for key, own in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        parts = [_pack(own, f"{place}[{number}]", tensors) for number, own in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": parts}
    raise BadInput(
        f"run.save: {place} is a {type(value).__name__}: keep numbers, text, tensors, arrays, and lists and "
        "dictionaries of them, such as model.state_dict()"
    )


def _unpack(value: Any, tensors: Tensors) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "float":
            return float(content)
        case "tensor":
            return tensors[content]
        case "array":
            return tensors[content].numpy()
        case "dict":
            return {_unpack(key, tensors): _unpack(own, tensors) for key, own in content}
        case _:
            parts = [_unpack(own, tensors) for own in content]
            return tuple(parts) if kind == "tuple" else parts
