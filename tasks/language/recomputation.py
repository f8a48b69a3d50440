"""`execution.gradient_checkpointing`: what a training recomputes in its backward passes, where memory asks for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from storage.errors import BadInput
from tasks.language.memory import TENSORS_PER_CHECKPOINT
from tasks.language.model import ROWS_AT_ONCE
from tasks.stage.execution import Execution
from tasks.stage.preflight import GIB, memory_bytes
from tasks.stage.run import StageRun
from tasks.training.budget import Budget

Losses = Callable[[Any, torch.Tensor], torch.Tensor]
KEY = "recomputed"
"""Its name among the numerics in stage.json."""
USABLE = 0.9
"""The share of a device's memory for tensors; the driver has some, and the allocator loses some."""
MOMENT_BYTES = 8  # a token and vocabulary entry, beside what is kept: its logit, later the gradient of that


def recompute(
    run: StageRun,
    model: Any,
    ways: Mapping[str, Losses],
    examples: Callable[[int], torch.Tensor],
    predicted: float,
    execution: Execution,
    budget: Budget,
) -> Losses:
    """Sets up `model` for the first of the `ways` that its device has memory for; returns the losses of that way.

    The ways are called nothing, loss and layers, by what they recompute: each takes less memory and more time than the
    one before. `examples` are so many of the training, of which each predicts `predicted` tokens. A continuation takes
    the way of the first attempt; BadInput where that does not fit, unless `execution.allow_numerics_change`.
    """
    if execution.gradient_checkpointing != "auto":
        return _set_up(model, "layers" if execution.gradient_checkpointing else "nothing", ways["nothing"])
    needs = {way: _need(model, ways, way, examples, predicted, execution, budget) for way in ways}
    usable = USABLE * memory_bytes(next(model.parameters()).device.type)
    way = next((way for way, need in needs.items() if need <= usable), [*ways][-1])
    if (before := run.settled(KEY)) in needs and before != way:
        if needs[before] > usable and not execution.allow_numerics_change:
            raise BadInput(
                f"{run.directory} was begun with {KEY}={before}, which takes {needs[before] / GIB:.1f} GiB, and this "
                f"device has {usable / GIB:.1f}: take one as large as before, or set execution.allow_numerics_change"
                f"=true, and it goes on with {KEY}={way}"
            )
        way = before if needs[before] <= usable else way
    run.settle(KEY, way)
    told = ", ".join(f"{name} {need / GIB:.2f}" for name, need in needs.items())
    run.log.info("%s: %s, of a device with %.2f GiB to use (GiB by way: %s)", KEY, way, usable / GIB, told)
    return _set_up(model, way, ways[way])


def _set_up(model: Any, way: str, losses: Losses) -> Losses:
    if way == "layers":
        model.gradient_checkpointing_enable()
    elif model.is_gradient_checkpointing:
        model.gradient_checkpointing_disable()
    return losses


def _need(
    model: Any,
    ways: Mapping[str, Losses],
    way: str,
    examples: Callable[[int], torch.Tensor],
    predicted: float,
    execution: Execution,
    budget: Budget,
) -> int:
    """Bytes on the device for a way to train, by what the backward pass of one example keeps, and of two."""
    number = min(execution.micro_batch_examples, budget.effective_batch_examples)
    losses, device = _set_up(model, way, ways[way]), next(model.parameters()).device
    model.train()
    with torch.autocast(device.type, torch.bfloat16, enabled=budget.precision == "bf16"):
        kept = [kept_for_backward(model, partial(losses, model, examples(some))) for some in (1, 2)[:number]]
    rows = int(number * predicted)
    moment = (rows if losses is ways["nothing"] else min(rows, ROWS_AT_ONCE)) * MOMENT_BYTES * model.config.vocab_size
    weights = sum(parameter.nbytes for parameter in model.parameters())
    of_all = kept[0] + (number - 1) * (kept[-1] - kept[0])
    if device.type == "cpu":
        of_all += TENSORS_PER_CHECKPOINT * weights  # their copy, which a GPU does not hold
    return peak_bytes(weights, of_all, moment, number < budget.effective_batch_examples)


def kept_for_backward(model: Any, losses: Callable[[], torch.Tensor]) -> int:
    """Bytes that autograd keeps between the forward and the backward pass, weights and buffers left out."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        losses()
    return sum(tensor.untyped_storage().nbytes() for place, tensor in kept.items() if place not in own)


def peak_bytes(weights: int, kept: int, moment: int, accumulates: bool) -> int:
    """Bytes when a training holds most: weights, AdamW's two moments, and what a backward pass begins with, or all
    gradients. Those of earlier micro-batches are there already where it `accumulates`."""
    return 3 * weights + max(weights * accumulates + kept + moment, weights)
