"""inversion-matrices: what all arms are judged on, by what inputs are normalised, and what needs no learning."""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import save_file

from storage.errors import CheckFailed
from storage.tensors import read_tensors
from tasks.inversion.diffusion import CLAMP
from tasks.inversion.matrices import Pairs, drawn, pairs
from tasks.inversion.results import MatricesResult, SplitFacts, Trivial
from tasks.inversion.stages import MatricesConfig
from tasks.stage.run import StageInput, StageRun

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
        given = drawn(config.seed, split, np.arange(asked.validation_matrices), asked.rank, diagonal)
        found = pairs(given)
        tensors |= {f"{split}.x": found.x, f"{split}.y": found.y}
        facts[split] = _facts(given, found, diagonal, known.y.mean(0))
    with run.publish_file(FILE) as file:
        save_file(tensors, file)
    return MatricesResult(**facts, input_mean=mean.tolist(), input_deviation=deviation.tolist())


def fixed_pairs(data: StageInput, split: str) -> Pairs:
    """The matrices of `validation` or `out_of_distribution`, as they were published."""
    tensors = read_tensors(data.path / FILE)
    return Pairs(tensors[f"{split}.x"], tensors[f"{split}.y"])


def _facts(given: np.ndarray, found: Pairs, diagonal: float, mean_inverse: torch.Tensor) -> SplitFacts:
    eigenvalues = np.linalg.eigvalsh(given)
    smallest = float(eigenvalues.min())
    if not smallest >= diagonal * (1 - ROUNDING):
        raise CheckFailed("no eigenvalue is below the diagonal that was added", smallest, diagonal)
    condition = np.quantile(eigenvalues[:, -1] / eigenvalues[:, 0], QUANTILES)
    return SplitFacts(
        matrices=len(found),
        smallest_eigenvalue=smallest,
        condition=condition.tolist(),
        clamped_share=float((found.y.abs() > CLAMP).double().mean()),
        trivial=Trivial(
            zero=float(found.y.double().square().mean()), mean=float((found.y - mean_inverse).double().square().mean())
        ),
    )
