"""Outputs that are the same for every example, and units that never fire, are named; healthy ones pass."""

import torch
from torch import nn

from tasks.training.trials.short import Outputs, looked_at, spread
from tests.tasks.training.pulses import PulseNetwork, events


def found(network: PulseNetwork) -> Outputs:
    pulses, directions = events(200, True)
    first, second = network.pulse[0], network.pulse[2]
    with torch.no_grad():
        return looked_at({"pulse.0": first, "pulse.2": second}, lambda: network(pulses), directions)


def network() -> PulseNetwork:
    torch.manual_seed(3)
    return PulseNetwork()


def test_spread_is_the_root_of_the_mean_squared_distance_from_the_mean():
    assert spread(torch.tensor([[0.0, 0.0], [3.0, 4.0]])) == 2.5
    assert spread(torch.ones(5, 3)) == 0


def test_a_dead_head_that_always_says_up_is_named():
    """As in the study that this one follows: 65 % of its units were dead, and it always said `up` (88 degrees)."""
    dead = network()
    with torch.no_grad():
        dead.pulse[2].weight[:21], dead.pulse[2].bias[:21] = 0.0, -1.0
        dead.event.weight.zero_()
        dead.event.bias.copy_(torch.tensor([0.0, 0.0, 1.0]))
    seen = found(dead)
    assert seen.spread_ratio == 0 and seen.dead_shares["pulse.2"] >= 21 / 32 and seen.dead_shares["pulse.0"] < 0.5


def test_a_head_that_says_different_things_passes():
    healthy = found(network())
    assert healthy.spread_ratio > 0 and healthy.dead_shares["pulse.0"] < 0.5


def test_a_unit_is_alive_that_fires_in_one_of_several_chunks():
    layer = nn.Linear(1, 2)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [1.0]]))
        layer.bias.copy_(torch.tensor([0.0, -9.0]))
    values = torch.tensor([[1.0], [-1.0]])
    with torch.no_grad():
        seen = looked_at({"it": layer}, lambda: torch.cat([layer(part) for part in values.split(1)]), values)
    assert seen.dead_shares == {"it": 0.5}
