"""The eigendecomposition of a factor: by a ladder of remedies, each told, and never by identity in silence.

What it answers was seen in an earlier system: a NaN in the triangle that a solver does not read goes unnoticed, an Inf
comes back as NaN without an error, and a patch that returned identity eigenvectors gave scores that looked plausible.
So all of the input must be finite, and the vectors must give the matrix back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Status = Literal["ok", "jittered", "diagonal", "excluded", "not_finite"]
Solver = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""A symmetric matrix [n, n] -> eigenvalues [n], eigenvectors [n, n] in columns, as `torch.linalg.eigh`."""

RESIDUAL = 1e-6
"""The largest ||V diag(values) V^T - M|| / ||M|| and ||V^T V - I|| / sqrt(n) (Frobenius) that pass; fp64 has 1e-13."""
JITTERS = (1e-8, 1e-7, 1e-6)
"""Added to the diagonal on the way, as multiples of its mean; the eigenvalues are given without it."""


@dataclass(frozen=True)
class Decomposition:
    """Eigenvalues [n] (ascending, fp64) and eigenvectors [n, n] in columns, with how they came about.

    `status`: `ok`; `jittered` (right to `residual`; the jitter was taken off again); `diagonal` (no solver served: the
    values are the matrix's diagonal, vectors None); `not_finite` (values None too). `rungs` are the remedies tried and
    what became of each, `asymmetry` is ||M - M^T|| / ||M||.
    """

    module: str
    status: Status
    values: torch.Tensor | None = None
    vectors: torch.Tensor | None = None
    rungs: list[str] = field(default_factory=list)
    asymmetry: float | None = None
    residual: float | None = None

    def told(self) -> dict[str, Any]:
        """All but the tensors, for JSON, with the extreme eigenvalues and their ratio, None where that is no number."""
        low, high = (None, None) if self.values is None else (float(self.values.min()), float(self.values.max()))
        condition = high / low if low is not None and high is not None and low > 0 else None
        numbers = {"asymmetry": self.asymmetry, "residual": self.residual, "condition": condition}
        return {
            "side": self.module,
            "status": self.status,
            "rungs": self.rungs,
            "minimum": low,
            "maximum": high,
            **numbers,
        }


def _scipy(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """LAPACK's other algorithm (relatively robust representations), on the CPU."""
    from scipy.linalg import eigh

    values, vectors = eigh(matrix.cpu().numpy(), driver="evr")
    return torch.from_numpy(values).to(matrix.device), torch.from_numpy(vectors).to(matrix.device)


SOLVERS: Mapping[str, Solver] = {"torch": torch.linalg.eigh, "scipy": _scipy}
"""The first is tried with each jitter, then the others without."""


def decomposed(matrix: torch.Tensor, module: str, solvers: Mapping[str, Solver] = SOLVERS) -> Decomposition:
    """Decomposes a symmetric `matrix` [n, n]; `module` names it in what is told.

    The rungs: all of it finite; symmetrised; fp64; jitter of 1e-8, 1e-7, 1e-6 of the mean of the diagonal; another
    back end; the diagonal. A solution counts only when it is finite, orthonormal, and gives the matrix back.
    """
    finite = matrix.isfinite()
    if not bool(finite.all()):
        row, column = (~finite).nonzero()[0].tolist()
        wrong = f"{module}: {int((~finite).sum())} of {matrix.numel()} values are not finite"
        return Decomposition(module, "not_finite", rungs=[f"{wrong}, the first at [{row}, {column}]"])
    matrix = matrix.double()
    size = float(matrix.norm()) or 1.0
    asymmetry = float((matrix - matrix.T).norm()) / size
    matrix = (matrix + matrix.T) / 2
    mean, rungs = float(matrix.diagonal().mean()), []
    first, *others = solvers
    tries = [(first, 0.0), *((first, jitter) for jitter in JITTERS), *((other, 0.0) for other in others)]
    for name, jitter in tries:
        try:
            shifted = matrix + jitter * mean * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
            values, vectors = solvers[name](shifted if jitter else matrix)
            values = values - jitter * mean
            residual = _residual(matrix, values, vectors, size)
        except (
            RuntimeError,
            ValueError,
            ArithmeticError,
            MemoryError,
        ) as error:  # a solver's own word, an out-of-memory included
            rungs.append(f"{name}, jitter {jitter:g}: {type(error).__name__}: {str(error)[:200]}")
            continue
        rungs.append(f"{name}, jitter {jitter:g}: residual {residual:.2g}")
        if residual <= RESIDUAL:
            status: Status = "jittered" if jitter else "ok"
            return Decomposition(module, status, values, vectors, rungs, asymmetry, residual)
    rungs.append("the diagonal")
    return Decomposition(module, "diagonal", matrix.diagonal().clone(), None, rungs, asymmetry)


def _residual(matrix: torch.Tensor, values: torch.Tensor, vectors: torch.Tensor, size: float) -> float:
    """How far the vectors are from giving the matrix back, or from being orthonormal; infinite where not finite."""
    if not bool(values.isfinite().all() and vectors.isfinite().all()):
        return float("inf")
    back = float(((vectors * values) @ vectors.T - matrix).norm()) / size
    gram = vectors.T @ vectors
    gram.diagonal().sub_(1)
    return max(back, float(gram.norm()) / len(matrix) ** 0.5)
