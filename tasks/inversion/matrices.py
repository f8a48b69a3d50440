"""Matrices to invert: A = 2 M M^T + d I with M uniform in (-1, 1), and y = A^-1; each a pure function of its index.

What is random is drawn and inverted in fp64; what leaves this module is fp32, row after row, [N, n^2].

inversion-matrices publishes those that all arms are judged on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from safetensors.torch import save_file

from storage.errors import CheckFailed
from storage.tensors import read_tensors
from tasks.inversion.diffusion import CLAMP
from tasks.inversion.stages import MatricesConfig, MatricesResult, SplitFacts, Trivial
from tasks.stage.run import StageInput, StageRun
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
    fp64 = np.asarray(matrices, dtype=np.float64)
    count, rank = fp64.shape[:2]
    try:
        inverses = np.linalg.inv(fp64)
    except np.linalg.LinAlgError:
        inverses = np.full_like(fp64, np.nan)
        for number, matrix in enumerate(fp64):
            if np.linalg.matrix_rank(matrix) == rank:
                inverses[number] = np.linalg.inv(matrix)
    left = np.abs(fp64 @ inverses - np.eye(rank)).max(axis=(1, 2), initial=0.0)
    scale = np.abs(fp64).max(axis=(1, 2)) * np.abs(inverses).max(axis=(1, 2))
    wrong = ~(left <= WORST_INVERSE * np.maximum(scale, 1)) | ~(scale < 1 / np.finfo(np.float64).eps)
    if wrong.any():
        worst = int(np.flatnonzero(wrong)[0])
        raise CheckFailed(
            "every matrix has an inverse",
            f"matrix {worst} of {count} is singular, or nearly",
            "a smallest singular value well above 0",
            "Its inverse would be a random number: raise the diagonal that is added",
        )
    flat = [torch.from_numpy(values.reshape(count, rank * rank).astype(np.float32)) for values in (fp64, inverses)]
    return Pairs(*flat)


FILE = "matrices.safetensors"
MEASURED = 4096
"""Matrices, none of them to validate on, whose entries give mean and deviation."""
QUANTILES = (0.05, 0.5, 0.95)
ROUNDING = 1e-9


def matrices(run: StageRun, config: MatricesConfig) -> MatricesResult:
    """Publishes `matrices.safetensors`: x and y of both splits, fp32 [N, n^2]. CheckFailed where one is no inverse."""
    asked = config.matrices
    diagonals = {"validation": asked.diagonal_in, "out_of_distribution": asked.diagonal_out}
    known = pairs(drawn(config.seed, "measured", np.arange(MEASURED), asked.rank, asked.diagonal_in))
    mean, deviation = known.x.mean(0), known.x.std(0)
    if not asked.standardise_inputs:
        mean, deviation = torch.zeros_like(mean), torch.ones_like(deviation)
    facts: dict[str, SplitFacts] = {}
    tensors: dict[str, torch.Tensor] = {}
    for split, diagonal in diagonals.items():
        split_matrices = drawn(config.seed, split, np.arange(asked.validation_matrices), asked.rank, diagonal)
        split_pairs = pairs(split_matrices)
        tensors |= {f"{split}.x": split_pairs.x, f"{split}.y": split_pairs.y}
        facts[split] = _facts(split_matrices, split_pairs, diagonal, known.y.mean(0))
    with run.publish_file(FILE) as file:
        save_file(tensors, file)
    return MatricesResult(**facts, input_mean=mean.tolist(), input_deviation=deviation.tolist())


def fixed_pairs(data: StageInput, split: str) -> Pairs:
    """The matrices of `validation` or `out_of_distribution`, as they were published."""
    tensors = read_tensors(data.path / FILE)
    return Pairs(tensors[f"{split}.x"], tensors[f"{split}.y"])


def _facts(values: np.ndarray, fixed: Pairs, diagonal: float, mean_inverse: torch.Tensor) -> SplitFacts:
    eigenvalues = np.linalg.eigvalsh(values)
    smallest = float(eigenvalues.min())
    if not smallest >= diagonal * (1 - ROUNDING):
        raise CheckFailed("no eigenvalue is below the diagonal that was added", smallest, diagonal)
    condition = np.quantile(eigenvalues[:, -1] / eigenvalues[:, 0], QUANTILES)
    return SplitFacts(
        matrices=len(fixed),
        smallest_eigenvalue=smallest,
        condition=condition.tolist(),
        clamped_share=float((fixed.y.abs() > CLAMP).double().mean()),
        trivial=Trivial(
            zero=float(fixed.y.double().square().mean()), mean=float((fixed.y - mean_inverse).double().square().mean())
        ),
    )
