"""The memory that training a language model takes at least, estimated before any of it is taken."""

import logging
from typing import Any

from storage.errors import BadInput
from tasks.stage.execution import Execution
from tasks.stage.numerics import device
from tasks.stage.preflight import GIB, memory_bytes
from tasks.stage.progress import FOR_THE_TERMINAL

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
    head = (
        f"training {parts['fp32 weights'] // BYTES_PER_PARAMETER:,} parameters needs at least {need / GIB:.1f} GiB "
        f"({sizes}), and this {kind} has {total / GIB:.1f} GiB: "
    )
    alone = execution.model_copy(update={"micro_batch_examples": 1})
    if execution.fit_memory and sum(training_memory(model, sequence_length, alone, predicted).values()) <= total:
        log.warning("%smicro-batches are halved when memory ends (execution.fit_memory)", head, extra=FOR_THE_TERMINAL)
        return parts
    held = sum(size for part, size in parts.items() if part in ("fp32 weights", "gradients", "two AdamW moments"))
    changes = ["take a device with more memory or a smaller model"]
    if held <= total:
        if not execution.gradient_checkpointing:
            changes.insert(0, "set execution.gradient_checkpointing=true")
        if execution.micro_batch_examples > 1:
            changes.insert(0, f"lower execution.micro_batch_examples (now {execution.micro_batch_examples})")
    raise BadInput(f"{head}{', '.join(changes[:-1])}{', or ' if changes[1:] else ''}{changes[-1]}")
