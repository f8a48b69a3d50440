"""The eigendecomposition of a factor: by a ladder of remedies, each told, and never by identity in silence. Solvers
leave a NaN in the triangle that they do not read, and answer an Inf with NaN and no error: so all of the input must be
finite, and the vectors must give the matrix back."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

Status = Literal["ok", "jittered", "blocks", "one_side", "diagonal", "excluded", "no_curvature", "not_finite"]
Solver = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""A symmetric matrix [n, n] -> eigenvalues [n], eigenvectors [n, n] in columns, as `torch.linalg.eigh`."""
RESIDUAL, JITTERS = 1e-6, (0.0, 1e-8, 1e-7, 1e-6)
"""The most that ||V diag(values) V^T - M|| / ||M|| + ||V^T V - I|| / sqrt(n) (Frobenius) may be (fp64 has 1e-13); what
is added to the diagonal, as multiples of its mean: the eigenvalues are given without it."""


@dataclass(frozen=True)
class Decomposition:
    """Eigenvalues [n] (ascending, fp64) and eigenvectors [n, n] in columns. `status`: `ok`; `jittered` (right to
    `residual`); `diagonal` (no solver served: the values are the matrix's diagonal, vectors None); `not_finite` (values
    None too). `rungs`: the remedies tried and what became of each. `asymmetry`: ||M - M^T|| / ||M||."""

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
        extremes = {"minimum": low, "maximum": high, "condition": high / low if low and high and low > 0 else None}
        return extremes | {key: value for key, value in vars(self).items() if key not in ("values", "vectors")}


def _scipy(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from scipy.linalg import eigh  # by relatively robust representations, another algorithm than torch's

    values, vectors = eigh(matrix.cpu().numpy(), driver="evr")
    return torch.from_numpy(values).to(matrix.device), torch.from_numpy(vectors).to(matrix.device)


SOLVERS: Mapping[str, Solver] = {"torch": torch.linalg.eigh, "scipy": _scipy}


def decomposed(matrix: torch.Tensor, module: str, solvers: Mapping[str, Solver] = SOLVERS) -> Decomposition:
    """Decomposes a symmetric `matrix` [n, n]; `module` names it in what is told. The rungs: all of it finite; made
    symmetric, in fp64; the first solver, with more and more jitter; the others; the diagonal."""
    if wrong := int((~matrix.isfinite()).sum()):
        first = [*divmod(int(matrix.isfinite().int().argmin()), len(matrix))]
        return Decomposition(module, "not_finite", rungs=[f"{wrong} values are not finite, the first at {first}"])
    matrix, rungs, (default, *others) = matrix.double(), [], solvers
    size = float(matrix.norm()) or 1.0
    asymmetry, matrix = float((matrix - matrix.T).norm()) / size, (matrix + matrix.T) / 2
    for name, jitter in [*((default, jitter) for jitter in JITTERS), *((other, 0.0) for other in others)]:
        shift = jitter * matrix.diagonal().mean()
        try:
            values, vectors = solvers[name](matrix + shift * torch.eye(len(matrix)).to(matrix) if jitter else matrix)
            gram, values = vectors.T @ vectors, values - shift
            gram.diagonal().sub_(1)
            back = ((vectors * values) @ vectors.T - matrix).norm() / size
            residual = float(back + gram.norm() / len(matrix) ** 0.5)
        except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
            rungs.append(f"{name}, jitter {jitter:g}: {type(error).__name__}: {str(error)[:200]}")
            continue
        rungs.append(f"{name}, jitter {jitter:g}: residual {residual:.2g}")
        if residual <= RESIDUAL:
            return Decomposition(module, "jittered" if jitter else "ok", values, vectors, rungs, asymmetry, residual)
    return Decomposition(module, "diagonal", matrix.diagonal().clone(), None, [*rungs, "the diagonal"], asymmetry)
