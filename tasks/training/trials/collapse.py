"""A model that says the same of different examples has collapsed, and has stopped learning.

A loss that stands near a trivial value does not say why. A head whose units are all dead, or outputs that are the same
for every example, do; and both can hide behind a metric that looks like slow learning.
"""

from collections.abc import Callable, Mapping

import torch
from torch import nn

from storage.errors import CheckFailed
from tasks.training.trials.findings import Outputs


def spread(values: torch.Tensor) -> float:
    """The root of the mean squared distance from the mean, of values [N, D]; in their unit."""
    values = values.double()
    return float((values - values.mean(0)).square().sum(1).mean().sqrt())


def looked_at(units: Mapping[str, nn.Module], outputs: Callable[[], torch.Tensor], truth: torch.Tensor) -> Outputs:
    """Calls `outputs`, the model's outputs [N, D] for the examples of `truth` [N, D], and watches `units` meanwhile.

    `units` are modules by name whose outputs [..., units] a rectifier follows: a unit is dead when none of its values
    is above 0. ValueError for a truth without spread, and for a module that was not called.
    """
    if not (apart := spread(truth)):
        raise ValueError("the truth is the same for every example: nothing can be said of the spread of outputs")
    alive: dict[str, torch.Tensor] = {}

    def watch(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...], torch.Tensor], None]:
        def see(_: nn.Module, __: tuple[torch.Tensor, ...], values: torch.Tensor) -> None:
            above = (values > 0).flatten(0, -2).any(0)
            alive[name] = alive[name] | above if name in alive else above

        return see

    handles = [module.register_forward_hook(watch(name)) for name, module in units.items()]
    try:
        given = outputs()
    finally:
        for handle in handles:
            handle.remove()
    if silent := sorted(units.keys() - alive.keys()):
        raise ValueError(f"{silent[0]} was not called, so that nothing is known of its units")
    dead = {name: 1 - float(alive[name].double().mean()) for name in units}
    return Outputs(spread_ratio=spread(given) / apart, dead_shares=dead)


def require_diverse(found: Outputs, min_spread_ratio: float, max_dead_share: float) -> None:
    """CheckFailed names what has collapsed: outputs with less spread than that share of the truth's, or dead units."""
    faults = []
    if not found.spread_ratio >= min_spread_ratio:  # nor where it is not a number
        faults.append(f"outputs with {found.spread_ratio:.3g} of the truth's spread")
    faults += [
        f"{share:.0%} dead units in {name}" for name, share in found.dead_shares.items() if share > max_dead_share
    ]
    if faults:
        raise CheckFailed(
            "the model says different things of different examples",
            "; ".join(faults),
            f"at least {min_spread_ratio:g} of the spread, at most {max_dead_share:.0%} dead units",
            "A lower learning rate, a warm-up or another start may keep units alive; more steps do not revive them",
        )
