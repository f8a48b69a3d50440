"""Matrices and their inverses: a function of the index alone, fp32 at the boundary, no inverse of a singular one."""

import numpy as np
import pytest
import torch

from storage.errors import CheckFailed
from tasks.inversion.diffusion import Diffusion
from tasks.inversion.matrices import drawn, pairs
from tasks.inversion.report import RECORDED


def test_a_matrix_is_a_function_of_its_index_whatever_stands_beside_it() -> None:
    together = drawn(0, "train", np.array([7, 3, 10**9]), 3, 0.5)
    alone = drawn(0, "train", np.array([10**9]), 3, 0.5)
    assert (together[2] == alone[0]).all()
    assert not (together[0] == together[1]).any()
    assert not (drawn(1, "train", np.array([7]), 3, 0.5) == together[0]).any()
    assert not (drawn(0, "validation", np.array([7]), 3, 0.5) == together[0]).any()


@pytest.mark.parametrize("diagonal", [0.5, 0.1])
def test_matrices_are_symmetric_and_no_eigenvalue_is_below_the_diagonal(diagonal: float) -> None:
    found = drawn(0, "train", np.arange(200), 5, diagonal)
    assert np.allclose(found, found.transpose(0, 2, 1))
    assert np.linalg.eigvalsh(found).min() >= diagonal * (1 - 1e-9)


def test_fp64_goes_in_and_fp32_comes_out_with_the_inverse_of_each() -> None:
    """A device without fp64 got it in the recorded study, and the run ended in a TypeError."""
    given = drawn(0, "train", np.arange(20), 4, 0.5)
    assert given.dtype == np.float64
    found = pairs(given)
    assert found.x.dtype == found.y.dtype == torch.float32 and found.x.shape == found.y.shape == (20, 16)
    product = found.x.reshape(-1, 4, 4).double() @ found.y.reshape(-1, 4, 4).double()
    assert torch.allclose(product, torch.eye(4, dtype=torch.float64).expand(20, 4, 4), atol=1e-4)


@pytest.mark.parametrize("bad", [np.zeros((3, 3)), np.ones((3, 3)), np.diag([1.0, 1.0, 1e-17])])
def test_a_singular_matrix_is_named(bad: np.ndarray) -> None:
    given = drawn(0, "train", np.arange(4), 3, 0.5)
    given[2] = bad
    with pytest.raises(CheckFailed, match="matrix 2 of 4 is singular"):
        pairs(given)


def test_a_matrix_with_numbers_that_are_not_finite_is_named_too() -> None:
    given = drawn(0, "train", np.arange(4), 3, 0.5)
    given[1, 0, 0] = np.nan
    with pytest.raises(CheckFailed, match="matrix 1 of 4"):
        pairs(given)


@pytest.mark.parametrize(
    ("what", "rank"), [("pilot, called successful (rank 10)", 10), ("none, one seed (rank 20)", 20)]
)
def test_what_needs_no_learning_on_the_recorded_matrices_is_what_the_report_says(what: str, rank: int) -> None:
    """With as many matrices as the recorded validation had; the pilot's 0.0688 stands beside those of rank 10."""
    known, found = (pairs(drawn(0, split, np.arange(5632), rank, 0.5)).y for split in ("measured", "validation"))
    _, trivial = RECORDED[what]
    assert float(found.square().mean()) == pytest.approx(trivial.zero, rel=0.01)
    assert float((found - known.mean(0)).square().mean()) == pytest.approx(trivial.mean, rel=0.01)


def test_the_schedule_is_the_recorded_one() -> None:
    """Ten steps, as computed from the recorded study's code."""
    found = Diffusion.cosine(10)
    assert found.alpha_bar.tolist()[:-1] == pytest.approx(
        [0.972, 0.899, 0.787, 0.648, 0.494, 0.341, 0.203, 0.094, 0.024], abs=1e-3
    )
    assert found.alpha_bar[-1] < 1e-3
    assert found.step_size.tolist() == pytest.approx(
        [0.167, 0.237, 0.270, 0.298, 0.334, 0.382, 0.453, 0.564, 0.753, 0.999], abs=1e-3
    )
