"""The digest of a saved model: two trainings with equal weights are one."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors import safe_open

from storage import durable


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
