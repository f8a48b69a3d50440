"""Weights of saved models: their digest, since two trainings with equal weights are one; their place."""

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn

from storage import durable
from storage.errors import BadInput
from storage.tensors import read_tensors


def weights_digest(folder: Path) -> str:
    """sha256 over (name, dtype, shape, bytes) of every tensor of a saved model in name order, tied tensors once."""
    digest = hashlib.sha256()
    names: dict[str, Path] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            names |= dict.fromkeys(tensors.keys(), file)
    for name in sorted(names):
        with safe_open(names[name], framework="pt") as tensors:
            tensor = tensors.get_tensor(name)
        head = durable.canonical_json([name, str(tensor.dtype), list(tensor.shape)])
        digest.update(head)
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def load_kept(network: nn.Module, file: Path) -> None:
    """Loads weights that a stage kept; BadInput where they do not fit the network that is described beside them."""
    try:
        network.load_state_dict(read_tensors(file))
    except RuntimeError as error:
        raise BadInput(
            f"{file} does not fit the network described beside it: {str(error).splitlines()[-1].strip()}"
        ) from None
