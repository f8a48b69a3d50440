"""The memory that training a language model takes at least, estimated before any of it is taken; and what it recomputes
where memory asks for that (`execution.gradient_checkpointing`)."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from storage.errors import BadInput
from tasks.language.model import ROWS_AT_ONCE
from tasks.stage.execution import Execution
from tasks.stage.numerics import device
from tasks.stage.preflight import GIB, memory_bytes
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.budget import Budget

log = logging.getLogger("ratchet.memory")

BYTES_PER_PARAMETER = 4  # fp32
TENSORS_PER_CHECKPOINT = 3  # weights and two AdamW moments
LOGITS_BYTES = 12  # a token and vocabulary entry: the logits, their softmax, its gradient, in fp32
RESIDUAL_BYTES = 4  # a token and unit of width: a layer's input, which is all that checkpointing keeps of it
# Kept by a layer's backward pass of a token, a unit of its width and of its feed-forward width: the least among the
# known architectures (GPT-NeoX under bf16 autocast); fp32 and gated layers keep up to three times that.
LAYER_BYTES, FEED_FORWARD_BYTES = 14, 6


def training_memory(
    model: Any, sequence_length: int, execution: Execution, predicted: float | None = None
) -> dict[str, int]:
    """Part -> bytes that training `model` holds on the device when it holds most. Each is what it takes at least.

    That is in the backward pass of a micro-batch: the fused AdamW takes nothing more. Left out: averaged weights, bf16
    copies of weights, softplus(V) of constrained layers, attention scores, what the allocator cannot use, the driver.
    `predicted`: tokens of a sequence that have logits, those of a pair's summary; None: all.
    """
    config, weights = model.config, BYTES_PER_PARAMETER * sum(parameter.numel() for parameter in model.parameters())
    tokens = execution.micro_batch_examples * sequence_length
    named = (getattr(config, name, None) for name in ("intermediate_size", "n_inner", "d_ff"))
    feed_forward = next(filter(None, named), 4 * config.hidden_size)  # GPT-2 without n_inner has this
    layer = tokens * (LAYER_BYTES * config.hidden_size + FEED_FORWARD_BYTES * feed_forward)
    kept = {"activations of all layers": layer * config.num_hidden_layers}
    if execution.gradient_checkpointing:
        inputs = tokens * RESIDUAL_BYTES * config.hidden_size * config.num_hidden_layers
        kept = {"inputs of all layers": inputs, "activations of one layer": layer}
    held = {"fp32 weights": weights, "gradients": weights, "two AdamW moments": 2 * weights}
    if device(execution).type == "cpu":
        held["the copy for checkpoints"] = TENSORS_PER_CHECKPOINT * weights
    logits = int(execution.micro_batch_examples * (predicted or sequence_length)) * LOGITS_BYTES * config.vocab_size
    return held | {"logits of a micro-batch": logits} | kept


def require_memory(
    model: Any, sequence_length: int, execution: Execution, predicted: float | None = None
) -> dict[str, int]:
    """`training_memory`; BadInput when that is more than the device has, naming the parts and what to change.

    With `fit_memory` that is told, and the training halves its micro-batches: BadInput where not even one example fits.
    """
    parts, kind = training_memory(model, sequence_length, execution, predicted), device(execution).type
    need, total = sum(parts.values()), memory_bytes(kind)
    if need <= total:
        return parts
    sizes = ", ".join(f"{part} {size / GIB:.1f}" for part, size in parts.items())
    told = (
        f"training {parts['fp32 weights'] // BYTES_PER_PARAMETER:,} parameters needs at least {need / GIB:.1f} GiB "
        f"({sizes}), and this {kind} has {total / GIB:.1f} GiB: "
    )
    alone = execution.model_copy(update={"micro_batch_examples": 1})
    if execution.fit_memory and sum(training_memory(model, sequence_length, alone, predicted).values()) <= total:
        log.warning("%smicro-batches are halved when memory ends (execution.fit_memory)", told, extra=FOR_THE_TERMINAL)
        return parts
    held = sum(size for part, size in parts.items() if part in ("fp32 weights", "gradients", "two AdamW moments"))
    changes = ["take a device with more memory or a smaller model"]
    if held <= total:
        if not execution.gradient_checkpointing:
            changes.insert(0, "set execution.gradient_checkpointing=true")
        if execution.micro_batch_examples > 1:
            changes.insert(0, f"lower execution.micro_batch_examples (now {execution.micro_batch_examples})")
    raise BadInput(f"{told}{', '.join(changes[:-1])}{', or ' if changes[1:] else ''}{changes[-1]}")


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
