"""Angles that are right where an arc cosine is not, with gradients that are finite everywhere."""

import math

import pytest
import torch

from tasks.icecube.batches import SHORTEST, angle, direction, from_angles

TURNS = [0.0, 1e-7, 1e-4, 0.013, 0.7, math.pi / 2, 2.9, math.pi - 1e-3, math.pi - 1e-6, math.pi]
AXES = torch.tensor([[1.0, 0, 0], [0, 1.0, 0], [0.6, 0.0, 0.8], [-0.36, 0.48, 0.8]], dtype=torch.float64)


def turned(axis: torch.Tensor, by: float) -> torch.Tensor:
    """`axis` turned by so much in a plane through it."""
    across = torch.linalg.cross(axis, torch.tensor([0.3, -0.5, 0.7], dtype=torch.float64))
    return axis * math.cos(by) + across / across.norm() * math.sin(by)


@pytest.mark.parametrize("turn", TURNS)
def test_an_angle_is_right_to_the_last_digits_wherever_it_lies(turn: float):
    for axis in AXES:
        assert float(angle(axis, turned(axis, turn))) == pytest.approx(turn, abs=1e-15, rel=1e-12)
        one, other = axis.float(), turned(axis, turn).float()
        assert float(angle(one, other)) == pytest.approx(turn, abs=3e-7), "to within what float32 vectors tell"


def test_the_arc_cosine_of_the_earlier_system_does_not_see_what_is_nearer_than_its_clip():
    """Why this formula: the named other one says 0.0141 for every angle below it."""
    clipped = [torch.arccos((AXES[0] * turned(AXES[0], turn)).sum().clamp(max=1 - 1e-4)) for turn in (1e-4, 0.013)]
    assert clipped[0] == clipped[1] == pytest.approx(0.01414, abs=1e-5)
    assert angle(AXES[0], turned(AXES[0], 1e-4)) < angle(AXES[0], turned(AXES[0], 0.013)) < 0.0131


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gradient_is_finite_everywhere_and_1_where_it_exists(turn: float, dtype: torch.dtype):
    for axis in AXES:
        vector = turned(axis, turn).to(dtype).requires_grad_()
        angle(axis.to(dtype), vector).backward()
        assert vector.grad is not None and vector.grad.isfinite().all()
        if 0.01 < turn < 3.1:  # along the sphere
            along = vector.grad - (vector.grad * vector.detach()).sum() * vector.detach()
            assert float(along.norm()) == pytest.approx(1, rel=1e-3)
    same = axis.to(dtype).requires_grad_()
    angle(same, same.detach()).backward()
    assert same.grad is not None and same.grad.tolist() == [0, 0, 0]


@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-7, 1.0, 1e10])
def test_a_direction_of_any_length_has_a_finite_gradient(length: float):
    vector = (length * AXES[3]).float().requires_grad_()
    found = direction(vector)
    angle(found, AXES[0].float()).backward()
    assert vector.grad is not None and vector.grad.isfinite().all()
    assert float(found.detach().norm()) == pytest.approx(min(1.0, length / SHORTEST), rel=1e-5)


def test_directions_of_azimuth_and_zenith():
    azimuth, zenith = torch.tensor([0.0, math.pi / 2, 1.0]), torch.tensor([math.pi / 2, math.pi / 2, math.pi])
    expected = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, -1]])
    assert torch.allclose(from_angles(azimuth, zenith), expected, atol=1e-6)


def test_a_batch_gives_what_each_pair_gives_alone():
    one, other = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0)).unbind()
    together = angle(direction(one), direction(other))
    alone = [angle(direction(a), direction(b)) for a, b in zip(one, other, strict=True)]
    assert together.tolist() == pytest.approx([float(value) for value in alone], abs=1e-6)
