"""The ladder: what is not finite is found and named, and no solver's word is taken without the matrix coming back."""

from collections.abc import Callable

import pytest
import torch

from tasks.influence.factors import RESIDUAL, SOLVERS, decomposed


def _moments(samples: int, dimension: int) -> torch.Tensor:
    values = torch.randn(samples, dimension, generator=torch.Generator().manual_seed(0))
    return values.T @ values / samples


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [(2, 5), (5, 2), (3, 3)], ids=["above", "below", "diagonal"])
def test_a_value_that_is_not_finite_is_named_in_either_triangle(wrong, place):
    matrix = _moments(40, 8)
    matrix[place] = wrong
    found = decomposed(matrix, "encoder.3 columns.0")
    assert (found.module, found.status, found.vectors) == ("encoder.3 columns.0", "not_finite", None)
    assert found.rungs == [f"1 values are not finite, the first at {[*place]}"]


def test_torch_itself_does_not_see_a_nan_in_the_triangle_that_it_does_not_read():
    matrix = _moments(40, 8)
    matrix[2, 5] = float("nan")
    assert torch.linalg.eigh(matrix).eigenvalues.isfinite().all()


def test_a_factor_of_fewer_samples_than_dimensions_is_solved():
    matrix = _moments(40, 200)
    found = decomposed(matrix, "layer")
    assert found.status == "ok" and found.residual is not None and found.residual < 1e-12
    back = (found.vectors * found.values) @ found.vectors.T
    assert torch.allclose(back, matrix.double(), atol=1e-6)


def _raises(_: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    raise RuntimeError("CUSOLVER_STATUS_INVALID_VALUE")


def _identity(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return matrix.diagonal().sort().values, torch.eye(len(matrix), dtype=matrix.dtype)


def _nan(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors * float("nan")


def _not_orthonormal(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, vectors = torch.linalg.eigh(matrix)
    return values / 4, vectors * 2


@pytest.mark.parametrize("failure", [_raises, _identity, _nan, _not_orthonormal])
@pytest.mark.parametrize("failures", range(6))
def test_a_solver_that_fails_at_each_rung_leads_to_the_next(failure, failures):
    calls = []

    def failing(solve: Callable) -> Callable:
        def solver(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            calls.append(1)
            return failure(matrix) if len(calls) <= failures else solve(matrix)

        return solver

    matrix = _moments(40, 8)
    found = decomposed(matrix, "layer", {name: failing(solve) for name, solve in SOLVERS.items()})
    assert found.status == ["ok", "jittered", "jittered", "jittered", "ok", "diagonal"][failures]
    assert len(calls) == min(failures + 1, 5)
    tries = ["torch, jitter 0", "torch, jitter 1e-08", "torch, jitter 1e-07", "torch, jitter 1e-06", "scipy, jitter 0"]
    told = [rung.split(":")[0] for rung in found.rungs]
    assert told == [*tries, "the diagonal"][: len(told)] and len(told) == failures + 1
    if failures < 5:
        assert found.residual is not None and found.residual <= RESIDUAL
        back = (found.vectors * found.values) @ found.vectors.T
        assert torch.allclose(back, matrix.double(), atol=1e-9)
    else:
        assert found.vectors is None and torch.equal(found.values, matrix.double().diagonal())


def test_what_is_not_symmetric_is_made_so():
    matrix = _moments(40, 8)
    matrix[0, 1] += 0.5
    found = decomposed(matrix, "layer")
    assert found.status == "ok" and found.vectors is not None
    back = (found.vectors * found.values) @ found.vectors.T
    assert torch.allclose(back, ((matrix + matrix.T) / 2).double(), atol=1e-6)


def test_the_zero_matrix_of_a_layer_without_gradients_is_solved():
    assert decomposed(torch.zeros(4, 4), "layer").status == "ok"
