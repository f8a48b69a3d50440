"""What one training may spend."""

from __future__ import annotations

from typing import Literal

from tasks.stage.configuration import Configuration, scientific


class Budget(Configuration):
    """What one training may spend. Both arms share one, so that they cannot differ."""

    epochs: float = scientific(1.0, gt=0, description="Passes over the training examples; fractions are allowed.")
    effective_batch_examples: int = scientific(
        32, ge=1, description="Examples (blocks of text, for a language model) in one optimizer step."
    )
    learning_rate: float = scientific(1e-5, gt=0, description="Peak learning rate of AdamW.")
    warmup_ratio: float = scientific(
        0.1,
        ge=0,
        lt=1,
        description="Share of the steps with a linearly rising rate; afterwards it falls to zero.",
    )
    weight_decay: float = scientific(
        0.01,
        ge=0,
        description="Decoupled decay of weight matrices, never of biases and norms. In a constrained layer it acts "
        "on the effective weight W = softplus(V), so that both arms are pulled toward zero alike.",
    )
    max_gradient_norm: float = scientific(1.0, gt=0, description="Gradients are clipped to this global norm.")
    precision: Literal["fp32", "tf32", "bf16"] = scientific(
        "fp32",
        description="bf16 means autocast over fp32 master weights; tf32 (GPUs from Ampere on) rounds the factors of "
        "matrix products only. The weights themselves stay fp32.",
    )
    validations_per_epoch: int = scientific(
        1, ge=1, description="Validations, each with a checkpoint, in one epoch (at least one at the end)."
    )
    ema_decay: float | None = scientific(
        None,
        gt=0,
        lt=1,
        added_later=True,
        description="Decay in each step of an exponential moving average of the weights (0.999 is usual), which is "
        "then what is validated and kept; empty means none.",
    )
