"""Guards against weights that do not move, as in the earlier system's bf16 training (defect D2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from storage.errors import CheckFailed
from tasks.monotonic.constraint import free_parameters
from tasks.training.schedule import Schedule

FIRST_CHECK_STEP = 10
REQUIRED_MOVED_SHARE = 0.99


def movement_checks(initial: Path, variant: str, schedule: Schedule) -> dict[int, list[Callable[[nn.Module], None]]]:
    """Step -> checks that V has left the values in `initial`, which is read from disk when a check is due.

    Reading it from disk, and not from memory, lets the check survive a continuation. After 10 steps every tensor
    must have some that moved; at the first step after warm-up 99 % of all must have. Earlier is too early: at a
    learning rate of 1e-5 the spacing of fp32 keeps many V still for tens of steps.
    """

    def every_tensor(model: nn.Module) -> None:
        for name, share in _moved(model, initial, variant).items():
            if share == 0:
                raise CheckFailed(f"{name} has weights that moved since constrain", 0, "more than 0", _ADVICE)

    def nearly_all(model: nn.Module) -> None:
        shares = _moved(model, initial, variant)
        sizes = {name: v.numel() for name, v in free_parameters(model, variant).items()}
        share = sum(shares[name] * size for name, size in sizes.items()) / sum(sizes.values())
        if share < REQUIRED_MOVED_SHARE:
            raise CheckFailed(
                "share of constrained weights that moved since constrain",
                share,
                REQUIRED_MOVED_SHARE,
                _ADVICE,
            )

    first = min(FIRST_CHECK_STEP, schedule.total_steps)
    later = min(max(FIRST_CHECK_STEP, schedule.warmup_steps + 1), schedule.total_steps)
    if first == later:
        return {first: [every_tensor, nearly_all]}
    return {first: [every_tensor], later: [nearly_all]}


@torch.no_grad()
def _moved(model: nn.Module, initial: Path, variant: str) -> dict[str, float]:
    """Parameter name -> share of its elements that differ from the file."""
    before = load_file(initial)
    return {
        name: (v.detach().cpu() != before[name]).double().mean().item()
        for name, v in free_parameters(model, variant).items()
    }


_ADVICE = "Steps smaller than half the spacing of the weights' number format are lost: keep fp32 weights"
