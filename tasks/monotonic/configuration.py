"""Which weights are constrained."""

from __future__ import annotations

from typing import Literal

from tasks.stage.configuration import Configuration, scientific

_PLAIN, _GATED = ("mlp_in", "mlp_both", "mlp_in_attn_out"), ("gated_updown", "gated_all")

VARIANTS = {"gpt_neox": _PLAIN, "gpt2": _PLAIN, "llama": _GATED, "qwen2": _GATED, "qwen3": _GATED}
"""Architecture, as `model_type` in a model's config.json names it -> the variants that it has."""


class Constraint(Configuration):
    """Which weights are made non-negative, as W = softplus(V)."""

    variant: Literal["mlp_in", "mlp_both", "mlp_in_attn_out", "gated_updown", "gated_all"] = scientific(
        "mlp_both",
        description="mlp_in: the feed-forward input projection; mlp_both: input and output projection; "
        "mlp_in_attn_out: feed-forward input and attention output. Gated networks (Llama, Qwen): gated_updown: up "
        "and down projection; gated_all: the gate too.",
    )
