"""A model out of one GGUF file, as the folder that transformers reads: its weights de-quantized to fp32."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

MADE_BY = "transformers_version"


def gguf_folder(members: list[bytes]) -> list[bytes]:
    """config.json, model.safetensors, tokenizer.json, tokenizer_config.json of a causal language model."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    with tempfile.TemporaryDirectory(prefix="ratchet-gguf-") as name:
        given, made = Path(name) / "given", Path(name) / "made"
        given.mkdir()
        (given / "model.gguf").write_bytes(members[0])
        model = AutoModelForCausalLM.from_pretrained(
            given, gguf_file="model.gguf", dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
        model.save_pretrained(made)
        AutoTokenizer.from_pretrained(given, gguf_file="model.gguf").save_pretrained(made)
        described = json.loads((made / "config.json").read_bytes())
        config = json.dumps({key: value for key, value in described.items() if key != MADE_BY}).encode()
        others = ("model.safetensors", "tokenizer.json", "tokenizer_config.json")
        return [config, *((made / other).read_bytes() for other in others)]
