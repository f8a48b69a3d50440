"""Arms with one seed get the same draws, a loss does not depend on how its batch was cut, an inverse is found."""

from dataclasses import fields
from functools import partial

import numpy as np
import pytest
import torch

from tasks.inversion.diffusion import CLAMP, Diffusion, EnergyNetwork, energy_and_gradient, invert
from tasks.inversion.study import Matrices, Mining
from tasks.inversion.train import Batches, losses, negatives_of
from tasks.training.invariance import batchwise, require_invariant

MATRICES, CPU = Matrices(rank=3), torch.device("cpu")
DIFFUSION = Diffusion.cosine(10)
SOME = np.arange(64)
STRATEGIES = [Mining(strategy=name) for name in ("none", "random", "adversarial", "mixed")]


@pytest.fixture
def network() -> EnergyNetwork:
    torch.manual_seed(0)
    return EnergyNetwork(MATRICES.entries, 32, 10, torch.zeros(9), torch.ones(9)).double()


def batch(indices: np.ndarray, seed: int = 0):
    made = Batches(seed, MATRICES, 10, CPU, Mining(strategy="mixed"))(indices, 0)
    exact = {field.name: getattr(made, field.name).double() for field in fields(made) if field.name != "t"}
    return type(made)(t=made.t, **exact)


def test_what_is_drawn_of_a_matrix_does_not_depend_on_those_beside_it_and_does_on_the_seed() -> None:
    together, alone, another = batch(SOME), batch(np.array([40])), batch(np.array([40]), seed=1)
    for field in fields(together):
        assert torch.equal(getattr(together, field.name)[40], getattr(alone, field.name)[0]), field.name
    assert not torch.equal(alone.noise, another.noise) and not torch.equal(alone.x, another.x)
    assert set(together.t.tolist()) == set(range(10)), "every step of the diffusion"


@pytest.mark.parametrize("mining", STRATEGIES, ids=lambda mining: mining.strategy)
def test_a_loss_does_not_depend_on_how_its_batch_was_cut(network: EnergyNetwork, mining: Mining) -> None:
    of = partial(losses, network, diffusion=DIFFUSION, mining=mining)
    ways = batchwise(lambda some: of(batch(some)).detach()[:, None], 32)
    assert require_invariant(ways, SOME, 1e-9) <= 1e-9


def test_without_negatives_the_loss_is_the_error_of_the_noise(network: EnergyNetwork) -> None:
    some = batch(SOME)
    noised = DIFFUSION.noised(some.y, some.t, some.noise)
    _, gradient = energy_and_gradient(network, some.x, noised, some.t)
    expected = (gradient - some.noise).square().mean(-1)
    assert torch.allclose(losses(network, some, DIFFUSION, Mining()).detach(), expected)


def test_the_contrast_is_less_where_the_truth_has_the_lower_energy(network: EnergyNetwork) -> None:
    some, mining = batch(SOME), Mining(strategy="random", contrast_weight=2.0)
    plain = losses(network, some, DIFFUSION, Mining()).detach()
    contrast = (losses(network, some, DIFFUSION, mining).detach() - plain) / 2
    noised, negative = (DIFFUSION.noised(y, some.t, some.contrast) for y in (some.y, some.random.clamp(-CLAMP, CLAMP)))
    gap = (network(some.x, noised, some.t) - network(some.x, negative, some.t)).detach()
    assert torch.allclose(contrast, torch.log1p(gap.exp()))


def test_the_energy_s_gradient_is_that_of_its_energy(network: EnergyNetwork) -> None:
    some = batch(np.array([0]))
    _, gradient = energy_and_gradient(network, some.x, some.y, some.t)
    for entry in range(9):
        moved = [some.y.clone(), some.y.clone()]
        moved[0][0, entry] += 1e-5
        moved[1][0, entry] -= 1e-5
        high, low = (network(some.x, y, some.t) for y in moved)
        assert float((high - low).detach()) / 2e-5 == pytest.approx(float(gradient[0, entry]), rel=1e-4, abs=1e-7)


def test_a_negative_is_mined_from_the_noise_that_it_and_the_truth_are_given_and_another_one_is_predicted(
    network: EnergyNetwork,
) -> None:
    """As in the recorded study; a negative that was sought from other noise is a weaker one."""
    some = batch(SOME)
    still = Mining(strategy="adversarial", step_scale=1e-9, descent_steps=1)
    start = DIFFUSION.noised(some.y, some.t, still.noise_scale * some.contrast) / DIFFUSION.signal(some.t)
    inside = (start.abs() < CLAMP).all(-1)  # others are clamped where they moved
    found = negatives_of(network, some, DIFFUSION, still)
    assert inside.sum() > 2 and torch.allclose(found[inside], start[inside], atol=1e-5)
    assert not torch.equal(some.contrast, some.noise) and not torch.equal(some.contrast, some.random)


def test_negatives_are_what_their_strategy_says(network: EnergyNetwork) -> None:
    some = batch(SOME)
    of = {mining.strategy: negatives_of(network, some, DIFFUSION, mining) for mining in STRATEGIES[1:]}
    assert torch.equal(of["random"], some.random.clamp(-CLAMP, CLAMP))
    mined = some.share < Mining().adversarial_share
    assert 0 < mined.sum() < len(mined)
    assert torch.equal(of["mixed"][mined], of["adversarial"][mined])
    assert torch.equal(of["mixed"][~mined], of["random"][~mined])
    assert all((found.abs() <= CLAMP).all() and not found.requires_grad for found in of.values())


class Exact(torch.nn.Module):
    """The energy whose gradient is the noise, where the inverse is known: |y - signal * inverse|^2 / (2 * noise)."""

    def __init__(self, inverse: torch.Tensor) -> None:
        super().__init__()
        self.inverse = inverse

    def forward(self, x: torch.Tensor, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return (y - DIFFUSION.signal(t) * self.inverse).square().sum(-1) / (2 * DIFFUSION.noise(t)[:, 0])


@pytest.mark.parametrize("descent_steps", [0, 5])
def test_with_the_true_energy_the_inverse_is_found(descent_steps: int) -> None:
    some = batch(SOME)
    found = invert(Exact(some.y), DIFFUSION, some.x, some.noise, descent_steps)
    assert (some.y.abs() < CLAMP).all() and torch.allclose(found, some.y, atol=1e-5)
