"""How far training moved the constrained weights, beside the free matrices; and guards against those that do not move.

They do not in bf16 (defect D2), or through softplus at a low rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedModel

from storage.errors import CheckFailed
from tasks.monotonic.constraint import constrained_modules
from tasks.monotonic.keep import trained_parameter, trained_value
from tasks.monotonic.result import Movement
from tasks.monotonic.signs import AllowedSigns
from tasks.training.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def measure_movement(model: PreTrainedModel, variant: str, start: PreTrainedModel) -> Movement:
    """How far the effective weights of `model` lie from those of `start`, the model that its training began with.

    The yardstick of a parametrized layer is the free matrices, which AdamW steps directly. Memory: one fp32
    number for each weight of a matrix, on the CPU.
    """
    layers = constrained_modules(model, variant)
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    constrained: dict[str, np.ndarray] = {}
    free: list[np.ndarray] = []
    zeros = left = 0
    for name, module in start.named_modules():
        weight, there = getattr(module, "weight", None), model.get_submodule(name)
        if weight is None or weight.ndim < 2 or any(there.weight is table.weight for table in embeddings):
            continue
        before, now = (each.weight.detach().to("cpu", torch.float32) for each in (module, there))
        if name in layers:
            constrained[name] = _relative(before, now)
            still = before == 0
            zeros, left = zeros + int(still.sum()), left + int((now[still] != 0).sum())
        else:
            free.append(_relative(before, now))
    return Movement(
        constrained=_median(list(constrained.values())),
        free=_median(free),
        constrained_by_layer={name: _median([moved]) for name, moved in sorted(constrained.items())},
        share_of_zeros_left=left / zeros if zeros else None,
    )


def _relative(before: torch.Tensor, now: torch.Tensor) -> np.ndarray:
    """|change| over |start| of every weight that did not start at 0; [their number]."""
    began = before != 0
    return ((now - before).abs()[began] / before.abs()[began]).numpy()


def _median(parts: list[np.ndarray]) -> float | None:
    values = np.concatenate(parts) if parts else np.empty(0)
    return float(np.median(values, overwrite_input=len(parts) > 1)) if values.size else None


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
