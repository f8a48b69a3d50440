"""A T5 out of two ONNX files with 8-bit weights, encoder and decoder, as the folder that transformers reads.

A weight is `(quantized - zero point) * scale`, in fp32, by the name of the node that reads it: exact, so that the files
have the same bytes wherever they are made.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save

if TYPE_CHECKING:
    from onnx import ModelProto

FLAN_T5_SMALL = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "is_encoder_decoder": True,
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 1024,
    "num_layers": 8,
    "num_decoder_layers": 8,
    "num_heads": 6,
    "feed_forward_proj": "gated-gelu",
    "dropout_rate": 0.0,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
"""config.json of google/flan-t5-small, without its dropout: a training draws nothing that a kill could change."""
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
}
PARTS = {"enc": "encoder", "m/decoder": "decoder", "m/lm_head": "lm_head"}
"""What a part of the network is called in the graphs, and in transformers."""


def t5_folder(members: list[bytes], described: dict[str, Any] = FLAN_T5_SMALL) -> list[bytes]:
    """config.json, model.safetensors, tokenizer.json, tokenizer_config.json, of encoder, decoder and tokenizer.

    ValueError where the two graphs hold different embeddings.
    """
    import onnx

    encoder, decoder, tokenizer = members
    weights = {**_weights(onnx.load_model_from_string(encoder)), **_weights(onnx.load_model_from_string(decoder))}
    weights["shared.weight"] = weights.pop("encoder.embed_tokens.weight")
    if not np.array_equal(weights["shared.weight"], weights.pop("decoder.shared.weight")):
        raise ValueError("encoder and decoder read other embeddings")
    words = {**json.loads(tokenizer), "truncation": None, "padding": None}
    config, vocabulary, settings = (
        json.dumps(file, ensure_ascii=False).encode() for file in (described, words, TOKENIZER)
    )
    return [config, save(weights), vocabulary, settings]


def _weights(model: ModelProto) -> dict[str, np.ndarray[Any, Any]]:
    """fp32 weights by their names in transformers; a matrix [in, out] of a graph becomes its [out, in]."""
    from onnx import numpy_helper

    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    weights = {}
    for node in model.graph.node:
        for name in node.input:
            if name not in stored:
                continue
            if name.endswith("norm.weight"):
                weights[_name(node.name)] = stored[name]
            elif name.endswith("_quantized"):
                stem = name.removesuffix("_quantized")
                zero, scale = (stored[f"{stem}_{what}"] for what in ("zero_point", "scale"))
                weight = (stored[name].astype(np.float32) - np.float32(zero)) * np.float32(scale)
                weights[_name(node.name)] = np.ascontiguousarray(
                    weight.T if node.op_type == "MatMulInteger" else weight
                )
    return weights


def _name(node: str) -> str:
    """`encoder.block.0.layer.0.SelfAttention.q.weight` of `/enc/block.0/layer.0/SelfAttention/q/MatMul_quant`."""
    path = node.rpartition("/")[0].removeprefix("/")
    part = next(part for part in PARTS if path.startswith(part))
    return f"{PARTS[part]}{path.removeprefix(part)}.weight".replace("/", ".")
