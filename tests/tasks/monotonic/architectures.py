"""A tiny network of each architecture that can be constrained, and the layers that each variant means, by hand."""

from typing import Any

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tasks.monotonic import keep
from tasks.monotonic.arms import set_start
from tasks.monotonic.constraint import AllowedSigns, signs_of
from tasks.monotonic.stages import By, Signs, Start
from tests.tasks.tiny import tiny_model

SHAPE = {
    "vocab_size": 61,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 16,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "use_cache": False,
}


def probe(model: nn.Module) -> torch.Tensor:
    """The logits of two fixed texts, fp32 [2, 8, V]."""
    with torch.no_grad():
        return model(input_ids=torch.arange(16).view(2, 8)).logits


def network(architecture: str) -> Any:
    """Untrained, always the same weights, 2 blocks; GPT-2's, Llama's and Qwen2's embeddings are tied."""
    torch.manual_seed(0)
    if architecture == "gpt_neox":
        return tiny_model()
    if architecture == "gpt2":
        # its blocks have the hidden size as inner width too, so that a Conv1D's sides cannot be distinguished by shape
        config = GPT2Config(
            vocab_size=61, n_positions=16, n_embd=16, n_inner=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
        )
        return GPT2LMHeadModel(config).eval()
    if architecture == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)).eval()
    if architecture == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**SHAPE, tie_word_embeddings=True)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, tie_word_embeddings=False)).eval()


def _named(pattern: str, *attributes: str) -> set[str]:
    return {pattern.format(block) + attribute for block in range(2) for attribute in attributes}


_NEOX, _GPT2, _GATED = "gpt_neox.layers.{}.", "transformer.h.{}.", "model.layers.{}.mlp."

LAYERS: dict[tuple[str, str], set[str]] = {
    ("gpt_neox", "mlp_in"): _named(_NEOX, "mlp.dense_h_to_4h"),
    ("gpt_neox", "mlp_both"): _named(_NEOX, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
    ("gpt2", "mlp_in"): _named(_GPT2, "mlp.c_fc"),
    ("gpt2", "mlp_both"): _named(_GPT2, "mlp.c_fc", "mlp.c_proj"),
    **{(name, "gated_updown"): _named(_GATED, "up_proj", "down_proj") for name in ("llama", "qwen2", "qwen3")},
    **{
        (name, "gated_all"): _named(_GATED, "gate_proj", "up_proj", "down_proj") for name in ("llama", "qwen2", "qwen3")
    },
}
"""(architecture, variant) -> dotted names of the layers that must be constrained, and no others."""


def begun(
    model: Any, variant: str, signs: Signs = "non-negative", start: Start = "absolute", by: By = "softplus"
) -> AllowedSigns:
    """Constrains the model in place as an arm is before its first step; returns the allowed signs."""
    allowed = signs_of(model, variant, signs)
    set_start(model, variant, allowed, start)
    keep.prepare(model, variant, allowed, by)
    return allowed
