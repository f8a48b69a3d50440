"""The budget of one training."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import model_validator

from tasks.stage.configuration import Configuration, scientific


class LearningGate(Configuration):
    """The gate that ends a training which by `by_step` is not better than a trivial method by a margin."""

    max_ratio: float = scientific(
        gt=0,
        le=1,
        description="The lowest validation metric by then may be this much of the best trivial value. 1 is no margin: "
        "chance alone goes a few percent below a trivial value.",
    )
    by_step: int = scientific(ge=1, description="The step by which that must be reached; it is validated there.")


class SpikeGuard(Configuration):
    """The guard of a training against spikes of the loss and numbers that are not finite."""

    spike_factor: float = scientific(
        10.0,
        gt=1,
        description="A loss above so many times its running best is a spike. The running best is the lowest value so "
        "far of the exponential mean of the losses of the steps (each new one counts a tenth); losses are above 0.",
    )
    max_rollbacks: int = scientific(
        2,
        ge=0,
        description="How often the training may go back, after a spike or a number that is not finite, to the newest "
        "validation before it, or to the start; the next time it ends.",
    )
    rate_divisor: float = scientific(
        3.0, gt=1, description="The learning rate is divided by this each time that the training goes back."
    )
    max_skips: int = scientific(
        0,
        ge=0,
        description="Batches in a row that may be skipped because a loss or gradient of theirs is not finite; the next "
        "one counts as a spike.",
    )


class Budget(Configuration):
    """The budget of one training. Trainings that are compared share one, so that they cannot differ."""

    ALTERNATIVES: ClassVar = ("epochs", "steps")

    epochs: float | None = scientific(
        1.0, gt=0, description="Passes over the training examples; fractions are allowed. Empty where steps are given."
    )
    steps: int | None = scientific(None, ge=1, added_later=True, description="Optimizer steps, in the place of epochs.")
    effective_batch_examples: int = scientific(
        32, ge=1, description="Examples (blocks of text, for a language model) in one optimizer step."
    )
    learning_rate: float = scientific(1e-5, gt=0, description="Peak learning rate of AdamW.")
    warmup_ratio: float = scientific(
        0.1,
        ge=0,
        lt=1,
        description="Share of the steps with a linearly rising rate; afterwards it follows decay.",
    )
    decay: Literal["linear", "constant", "cosine"] = scientific(
        "linear",
        added_later=True,
        description="The learning rate after the warm-up: linear and cosine fall to zero, constant stays at the peak.",
    )
    beta_1: float = scientific(
        0.9, ge=0, lt=1, added_later=True, description="AdamW's decay of the mean of the gradients."
    )
    beta_2: float = scientific(
        0.999, ge=0, lt=1, added_later=True, description="AdamW's decay of the mean of their squares."
    )
    weight_decay: float = scientific(
        0.01,
        ge=0,
        description="Decoupled decay of weight matrices, never of biases and norms; it acts on the weight that "
        "the network multiplies by, however that is parametrized.",
    )
    max_gradient_norm: float = scientific(1.0, gt=0, description="Gradients are clipped to this global norm.")
    precision: Literal["fp32", "bf16"] = scientific(
        "fp32",
        description="bf16 means autocast over fp32 master weights: the weights themselves stay fp32.",
    )
    validations_per_epoch: int = scientific(
        1, ge=1, description="Validations, each with a checkpoint, in one epoch (at least one at the end)."
    )
    patience_validations: int | None = scientific(
        None,
        ge=1,
        added_later=True,
        description="The training ends early after so many validations in a row without a new best; empty means never.",
    )
    not_learning: LearningGate | None = scientific(
        None,
        added_later=True,
        description="When a training that is no better than a trivial method is ended as not learning; empty means "
        "never.",
    )
    guard: SpikeGuard | None = scientific(
        None,
        added_later=True,
        description="What follows on spikes and batches whose numbers are not finite; empty means that the training "
        "ends at the first number that is not finite, and that spikes pass.",
    )
    ema_decay: float | None = scientific(
        None,
        gt=0,
        lt=1,
        added_later=True,
        description="Decay in each step of an exponential moving average of the weights (0.999 is usual), which is "
        "then what is validated and kept; empty means none.",
    )

    def of_a_share(self, share: float) -> Budget:
        """The same for such a share of the examples, with the gate as early among the fewer steps."""
        if self.steps is not None or self.not_learning is None:
            return self
        by_step = max(1, int(share * self.not_learning.by_step))
        return self.model_copy(update={"not_learning": self.not_learning.model_copy(update={"by_step": by_step})})

    def with_work_of(self, other: Budget) -> Budget:
        """The same with the examples added that `other` goes through. ValueError where one has epochs, one steps."""
        if self.epochs is not None and other.epochs is not None:
            return self.model_copy(update={"epochs": self.epochs + other.epochs})
        if self.steps is None or other.steps is None:
            raise ValueError("one budget has epochs and the other steps: their work cannot be added before it is known")
        more = math.ceil(other.steps * other.effective_batch_examples / self.effective_batch_examples)
        return self.model_copy(update={"steps": self.steps + more})

    @model_validator(mode="before")
    @classmethod
    def _steps_replace_the_default_epochs(cls, values: object) -> object:
        if isinstance(values, dict) and values.get("steps") is not None:
            return {"epochs": None, **values}
        return values

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Budget:
        if (self.epochs is None) == (self.steps is None):
            both = f"both, epochs {self.epochs:g} and steps {self.steps}" if self.steps else "neither"
            raise ValueError(f"a budget has either epochs or steps, and here are {both}: leave one of them empty")
        return self
