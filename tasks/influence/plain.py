"""Curvature by numpy, from the files of factors alone: for whoever checks what the engine says of them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from scipy.linalg import block_diag

from storage import durable
from storage.tensors import read_tensors


def divided(gradients: Mapping[str, np.ndarray], folder: Path, damping: float | None) -> dict[str, np.ndarray]:
    """Gradients [rows, columns] of modules by their damped curvature; without those that `scores` leaves out."""
    found = {}
    left_out = ("not_finite", "no_curvature")
    usable = (name for name in gradients if durable.read_json(folder / f"{name}.json")["status"] not in left_out)
    for name in usable:
        gradient = gradients[name]
        kept = {key: of.double().numpy() for key, of in read_tensors(folder / f"{name}.finished.safetensors").items()}
        rows, columns = _basis(kept, "rows", len(gradient)), _basis(kept, "columns", gradient.shape[1])
        weight = kept["lambda"] + (0.1 * kept["lambda"].mean() if damping is None else damping)
        found[name] = rows @ (rows.T @ gradient @ columns / weight) @ columns.T
    return found


def _basis(kept: Mapping[str, np.ndarray], side: str, size: int) -> np.ndarray:
    """The eigenvectors of a side, block by block; without any, the axes."""
    blocks = [kept[key] for key in sorted(kept, key=lambda key: (len(key), key)) if key.startswith(f"{side}.")]
    return block_diag(*blocks) if blocks else np.eye(size)
