"""Guards against constrained weights that do not move: as in bf16 (defect D2), or through softplus at a low rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from storage.errors import CheckFailed
from tasks.monotonic.keep import trained_parameter, trained_value
from tasks.monotonic.movement import measure_movement
from tasks.monotonic.signs import AllowedSigns
from tasks.training.schedule import Schedule

FIRST_CHECK_STEP = 10

Check = Callable[[nn.Module], None]


def movement_checks(
    load_start: Callable[[], PreTrainedModel],
    variant: str,
    allowed: AllowedSigns,
    required_movement: float,
    schedule: Schedule,
) -> dict[int, list[Check]]:
    """Step -> checks that the constrained weights leave those of the model that `load_start` reads, on the CPU.

    After 10 steps every constrained matrix must be in fp32 and have weights that moved, unless all of them stay 0. At
    the first step after warm-up and at the last step the median relative movement of all must be `required_movement`
    times that of the free matrices; 0: is not asked. The start is read when a check is due, and not kept in memory, so
    that a continuation asks the same.
    """

    def every_matrix(model: nn.Module) -> None:
        start = load_start()
        for name, signs in allowed.layers.items():
            layer, before = model.get_submodule(name), start.get_submodule(name).weight.detach()
            now = trained_parameter(layer).detach().cpu()
            if now.dtype != torch.float32:
                raise CheckFailed(f"{name} is trained in fp32", str(now.dtype), "torch.float32", _FORMAT)
            if signs.any() and torch.equal(now, trained_value(layer, before)):
                raise CheckFailed(f"{name} has weights that moved since its start", 0, "more than 0", _FORMAT)

    def far_enough(model: nn.Module) -> None:
        require_movement(cast(PreTrainedModel, model), variant, load_start(), required_movement)

    first = min(FIRST_CHECK_STEP, schedule.total_steps)
    checks: dict[int, list[Check]] = {first: [every_matrix]}
    if required_movement:
        after_warmup = min(max(FIRST_CHECK_STEP, schedule.warmup_steps + 1), schedule.total_steps)
        for step in sorted({after_warmup, schedule.total_steps}):
            checks.setdefault(step, []).append(far_enough)
    return checks


def require_movement(model: PreTrainedModel, variant: str, start: PreTrainedModel, required: float) -> None:
    """CheckFailed unless constrained weights moved `required` times as far as the free matrices, and moved at all."""
    movement = measure_movement(model, variant, start)
    constrained, free = movement.constrained or 0.0, movement.free or 0.0
    if not (constrained > 0 and constrained >= required * free):
        raise CheckFailed(
            f"constrained weights move (median of |change| over |start|) {required:g} times as far as the free "
            "matrices, at least",
            f"{constrained:.3g}, where the free matrices moved {free:.3g}",
            f"{required * free:.3g}",
            _ADVICE,
        )


_FORMAT = "Steps smaller than half the spacing of the weights' number format are lost: keep fp32 weights"
_ADVICE = (
    "Through softplus a weight W moves by about W times a step: set constraint.by to projection, "
    "or raise budget.learning_rate; in bf16 steps are lost: keep fp32 weights"
)
