"""A real GGUF file of a few kilobytes: a Llama and its tokenizer, written as llama.cpp's converter writes them."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.language.tokenizer import END_OF_TEXT, train_tokenizer

TEXTS = [f"{word} the number {n} of {n * n} things" for n in range(300) for word in ("say", "see")]
VOCABULARY = 320
BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def tiny_llama() -> Any:
    """2 blocks, tied embeddings, always the same weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
        rms_norm_eps=2**-17,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def write_gguf(
    file: Path, quantized: bool = False, left_out: str = "", with_tokenizer: bool = True, name: str = "tiny"
) -> Path:
    """`tiny_llama` in fp32, or its matrices in 4 bits (Q4_1); `left_out` names a tensor that is missing."""
    model = tiny_llama()
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_name(name)
    writer.add_context_length(16)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_block_count(2)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(2**-17)
    writer.add_vocab_size(VOCABULARY)
    if with_tokenizer:
        _add_tokenizer(writer)
    for tensor_name, tensor in _tensors(model.state_dict()).items():
        if tensor_name == left_out:
            continue
        if quantized and tensor.ndim == 2:
            kind = gguf.GGMLQuantizationType.Q4_1
            writer.add_tensor(tensor_name, gguf.quantize(tensor, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor_name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def _add_tokenizer(writer: gguf.GGUFWriter) -> None:
    trained = train_tokenizer(TEXTS, VOCABULARY)
    model = json.loads(trained.backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    kinds = [gguf.TokenType.CONTROL if token == END_OF_TEXT else gguf.TokenType.NORMAL for token in tokens]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_unk_token_id):
        add(0)


def _tensors(state: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """Under llama.cpp's names; rows of queries and keys in its order of rotated halves."""
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    named = {
        "token_embd.weight": arrays["model.embed_tokens.weight"],
        "output_norm.weight": arrays["model.norm.weight"],
    }
    for block in range(2):
        for theirs, ours in BLOCK.items():
            array = arrays[f"model.layers.{block}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                heads = array.shape[0] // 16
                array = array.reshape(heads, 2, 8, -1).swapaxes(1, 2).reshape(array.shape)
            named[f"blk.{block}.{theirs}.weight"] = np.ascontiguousarray(array)
    return named
