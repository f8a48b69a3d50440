"""Matrices to invert: A = 2 M M^T + d I with M uniform in (-1, 1), and y = A^-1; each a pure function of its index.

What is random is drawn and inverted in fp64; what leaves this module is fp32, row after row, [N, n^2].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from storage.errors import CheckFailed
from tasks.training.draws import uniform_at

WORST_INVERSE = 1e-6
"""A y is no inverse, relative to |A||y|: fp64 rounds at 1e-16 times the condition number."""


@dataclass(frozen=True)
class Pairs:
    """Matrices and their inverses, flattened; fp32 [N, n^2] each."""

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.x)


def drawn(seed: int, purpose: str, indices: np.ndarray, rank: int, diagonal: float) -> np.ndarray:
    """The matrices A at these indices [B] of an endless row, fp64 [B, n, n]; the row is named by seed and purpose."""
    uniform = uniform_at(seed, purpose, 0, indices, (rank, rank)).numpy().astype(np.float64)
    m = 2 * uniform - 1
    return 2 * m @ m.transpose(0, 2, 1) + diagonal * np.eye(rank)


def pairs(matrices: np.ndarray) -> Pairs:
    """The matrices [N, n, n], of whatever precision, with their inverses. CheckFailed names one that has none."""
    given = np.asarray(matrices, dtype=np.float64)
    count, rank = given.shape[:2]
    try:
        inverses = np.linalg.inv(given)
    except np.linalg.LinAlgError:
        inverses = np.full_like(given, np.nan)
        for number, matrix in enumerate(given):
            if np.linalg.matrix_rank(matrix) == rank:
                inverses[number] = np.linalg.inv(matrix)
    left = np.abs(given @ inverses - np.eye(rank)).max(axis=(1, 2), initial=0.0)
    scale = np.abs(given).max(axis=(1, 2)) * np.abs(inverses).max(axis=(1, 2))
    wrong = ~(left <= WORST_INVERSE * np.maximum(scale, 1)) | ~(scale < 1 / np.finfo(np.float64).eps)
    if wrong.any():
        worst = int(np.flatnonzero(wrong)[0])
        raise CheckFailed(
            "every matrix has an inverse",
            f"matrix {worst} of {count} is singular, or nearly",
            "a smallest singular value well above 0",
            "Its inverse would be a random number: raise the diagonal that is added",
        )
    flat = [torch.from_numpy(one.reshape(count, rank * rank).astype(np.float32)) for one in (given, inverses)]
    return Pairs(*flat)
