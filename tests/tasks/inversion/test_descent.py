"""The published descent has two defects, and the checks of invariance find both; the corrected one has none."""

import numpy as np
import pytest
import torch

from storage.errors import CheckFailed
from tasks.inversion.diffusion import CLAMP, Diffusion, EnergyNetwork, descend, energy_and_gradient
from tasks.inversion.stages import TrainConfig
from tasks.inversion.study import DescentName, Matrices, Mining, Network
from tasks.inversion.train import BATCH, Batches, descent_ways
from tasks.training.budget import Budget
from tasks.training.invariance import largest_differences, require_invariant

MATRICES, STEPS = Matrices(rank=3), 10
DIFFUSION = Diffusion.cosine(STEPS)
SOME, MINED = np.arange(BATCH), Mining(strategy="adversarial")


@pytest.fixture
def network() -> EnergyNetwork:
    torch.manual_seed(0)
    return EnergyNetwork(MATRICES.entries, 32, STEPS, torch.zeros(9), torch.ones(9)).double()


def config(descent: DescentName, steps: int = 3) -> TrainConfig:
    return TrainConfig(
        matrices=MATRICES,
        network=Network(width=32, diffusion_steps=STEPS),
        budget=Budget(steps=10),
        seed=0,
        mining=Mining(strategy="adversarial", descent=descent, descent_steps=steps),
    )


def test_the_corrected_descent_does_not_depend_on_how_matrices_come(network: EnergyNetwork) -> None:
    ways = descent_ways(network, config("corrected"), DIFFUSION)
    assert {"in another order", "alone", "step by step", f"in batches of {BATCH // 8}"} < set(ways)
    assert require_invariant(ways, SOME, 1e-9) <= 1e-9


def test_both_defects_of_the_published_descent_are_found(network: EnergyNetwork) -> None:
    """Every row is clamped by the first one's t, and steps double after the first."""
    found = largest_differences(descent_ways(network, config("as-published"), DIFFUSION), SOME)
    wrong = {way for way, difference in found.items() if difference > 1e-6}
    assert wrong == {f"in batches of {BATCH // 8}", "in another order", "alone", "step by step"}
    with pytest.raises(CheckFailed, match="the model says the same of an example in batches of 2 as"):
        require_invariant(descent_ways(network, config("as-published"), DIFFUSION), SOME, 1e-6)


def test_of_one_step_the_doubling_is_no_defect_and_the_clamp_is(network: EnergyNetwork) -> None:
    found = largest_differences(descent_ways(network, config("as-published", steps=1), DIFFUSION), SOME)
    assert found["step by step"] == 0 < found["alone"]


@pytest.mark.parametrize("descent", ["corrected", "as-published"])
def test_no_step_that_raises_the_energy_is_kept(network: EnergyNetwork, descent: DescentName) -> None:
    batch = Batches(0, MATRICES, STEPS, torch.device("cpu"), MINED)(SOME, 0)
    x, y = batch.x.double(), 3 * batch.contrast.double()
    before, _ = energy_and_gradient(network, x, y, batch.t)
    found = descend(network, DIFFUSION, x, y, batch.t, 5, descent=descent)
    after, _ = energy_and_gradient(network, x, found, batch.t)
    assert (after <= before).all() and (after < before).any() and not found.requires_grad


def test_rows_that_moved_are_clamped_each_by_its_own_limit(network: EnergyNetwork) -> None:
    batch = Batches(0, MATRICES, STEPS, torch.device("cpu"), MINED)(SOME, 0)
    start = 3 * batch.contrast.double()
    found = descend(network, DIFFUSION, batch.x.double(), start, batch.t, 5)
    moved, limits = (found != start).any(-1), CLAMP * DIFFUSION.signal(batch.t)
    assert moved.sum() > 2 and (found[moved].abs() <= limits[moved] + 1e-6).all()


def test_a_step_is_as_long_as_the_schedule_and_the_scale_say(network: EnergyNetwork) -> None:
    x, t = torch.zeros(1, 9).double(), torch.tensor([2])
    y = torch.full((1, 9), 0.3).double()
    _, gradient = energy_and_gradient(network, x, y, t)
    for scale in (0.01, 0.1):
        moved = descend(network, DIFFUSION, x, y, t, 1, scale) - y
        assert torch.allclose(moved, -scale * DIFFUSION.step_size[2] * gradient)
