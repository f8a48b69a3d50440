"""Configuration of the stages that constrain a model, train the arms and look at their order."""

from __future__ import annotations

from typing import ClassVar, Literal

from tasks.language.stages import TRAINING, LanguageExecution, OfLanguageStudy
from tasks.stage.configuration import Configuration, scientific
from tasks.stage.numerics import Numerics
from tasks.training.budget import Budget

VALIDATION = "validation_loss"
"""What decides a training, in its metric rows; nats per token."""
DOCUMENTS = 32
"""First documents of the test split whose inputs of sublayers are looked at for their order."""


Variant = Literal["mlp_in", "mlp_both", "gated_updown", "gated_all"]
Signs = Literal["non-negative", "own", "random", "per-unit", "off"]
"""Which sign every constrained weight may have.

non-negative: +; own: that of the base model's weight; random: drawn once for each weight; per-unit: one for each hidden
unit, so that rows of the input and columns of the output projection flip together, which keeps the sublayer monotone;
off: none, the weight is 0.
"""
Start = Literal["positive-part", "absolute", "shifted"]
By = Literal["free", "projection", "softplus"]
"""Means of keeping the signs in training; free: none."""


class Constraint(Configuration):
    """Which weights the monotonic arm keeps non-negative, and where they start."""

    REMOVED: ClassVar = {
        "by": ("projection", "max(W, 0) follows each step, but for the arm earlier-system (softplus): leave it out")
    }

    variant: Variant = scientific(
        "mlp_both",
        description="mlp_in: the feed-forward input projection; mlp_both: input and output projection. Gated networks "
        "(Llama, Qwen): gated_updown: up and down projection; gated_all: the gate too.",
    )
    start: Start = scientific(
        "positive-part",
        description="Where the constrained weights start. positive-part: max(W, 0) of the base model; absolute: |W|; "
        "shifted: all weights moved up by what the network's LayerNorms take away again, which leaves the function "
        "as it is.",
    )


ASKED = {
    "validation losses": 1e-4,
    "losses of liveness": 1e-4,
    "ranks": 1e-3,
    "signs": 1e-6,
    "movement": 1e-4,
    "order": 1e-3,
}
"""Kind -> how near it must be: nats per token, else relative or of a share. Everything is asked in fp32: another batch,
kernel or device rounds a loss by 1e-6 to 1e-5."""


class ConstrainConfig(OfLanguageStudy):
    """constrain: the base model with constrained weights, untrained."""

    numerics: ClassVar = TRAINING

    variant: Variant = scientific(description="Which weights are constrained.")
    signs: Signs = scientific(description="Which sign each of them may have.")
    start: Start = scientific(description="Where they start.")
    seeds: list[int] = scientific([], description="Seeds of random signs, of the study and of its base model.")


class TrainConfig(OfLanguageStudy):
    """train-baseline, train-monotonic, train-placebo: the same function and budget for every arm."""

    numerics: ClassVar = TRAINING

    budget: Budget
    seed: int
    variant: Variant = scientific(description="The weights that the study constrains; here their movement is measured.")
    by: By = scientific(description="What keeps the signs of these weights; free: nothing.")
    required_movement: float = scientific(
        description="How far the constrained weights must move, as a share of how far the free matrices do."
    )
    snapshots: list[float]
    replaced: float = scientific(
        0.0, added_later=True, description="Share of the tokens read in training that are drawn at random."
    )


class ChooseConfig(OfLanguageStudy):
    """choose: of one arm's trainings with different learning rates, the best by validation loss."""

    numerics: ClassVar = Numerics(torch=False)


class OrderConfig(OfLanguageStudy):
    """order: whether the constrained sublayers are monotone functions, and what that does to ordered texts."""

    numerics: ClassVar = Numerics(fields=("evaluation_batch_examples",), packages=("transformers",))

    models: list[str] = scientific(description="Names of the models.")
    variant: Variant = scientific(description="Which sublayers are looked at.")
    execution: LanguageExecution
