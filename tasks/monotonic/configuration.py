"""Which weights are constrained, where they start, and what keeps them there."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator, model_validator

from tasks.stage.configuration import Configuration, scientific

Variant = Literal[
    "mlp_in", "mlp_both", "mlp_in_attn_out", "mlp_both_encoder", "mlp_both_decoder", "gated_updown", "gated_all"
]
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
    """Which weights the monotonic arm keeps non-negative, and how."""

    variant: Variant = scientific(
        "mlp_both",
        description="mlp_in: the feed-forward input projection; mlp_both: input and output projection; "
        "mlp_in_attn_out: feed-forward input and attention output; mlp_both_encoder, mlp_both_decoder: mlp_both in one "
        "half of a T5. Gated networks (Llama, Qwen): gated_updown: up "
        "and down projection; gated_all: the gate too.",
    )
    start: Start = scientific(
        "positive-part",
        description="Where the constrained weights start. positive-part: max(W, 0) of the base model; absolute: |W|; "
        "shifted: all weights moved up by what the network's LayerNorms take away again, which leaves the function "
        "as it is.",
    )
    by: Literal["projection", "softplus"] = scientific(
        "projection",
        description="What keeps them non-negative. projection: each step of AdamW is followed by max(W, 0); softplus: "
        "W = softplus(V), where a step moves a small weight by its own small share.",
    )

    @field_validator("start", mode="before")
    @classmethod
    def _was_not_taken_out(cls, start: object) -> object:
        if start == "distilled":
            raise ValueError("distilled was taken out of Ratchet: take positive-part, absolute or shifted")
        return start

    @model_validator(mode="after")
    def _can_leave_the_start(self) -> Constraint:
        if self.by != "projection" and self.start != "absolute":
            raise ValueError(
                f"constraint.by {self.by} needs constraint.start absolute: {self.start} makes weights 0, and through "
                "softplus a weight near 0 never moves again"
            )
        return self
