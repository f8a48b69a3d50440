"""A pretrained T5 of a few kilobytes as the hub has them: a Unigram tokenizer of pieces and a model beside it."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import T5Config, T5ForConditionalGeneration, T5TokenizerFast

from tests.tasks.tiny import sentences


def unigram_tokenizer(tokens: int = 160, extra_ids: int = 4) -> T5TokenizerFast:
    """Pieces with a mark for the space in front, pad 0, end 1, unknown 2, and T5's sentinels at the end."""
    unigram = Tokenizer(models.Unigram())
    unigram.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(
        vocab_size=tokens, special_tokens=special, unk_token="<unk>", show_progress=False
    )  # fmt: skip
    unigram.train_from_iterator(sentences(300), trainer)
    pieces = [tuple(piece) for piece in json.loads(unigram.to_str())["model"]["vocab"]]
    sentinels = [(f"<extra_id_{number}>", 0.0) for number in reversed(range(extra_ids))]
    return T5TokenizerFast(vocab=[*pieces, *sentinels], extra_ids=extra_ids)


def write_t5(folder: Path, gated: bool = False, **changed: object) -> Path:
    """The folder that `save_pretrained` writes; its embedding has rows that no token has, as T5's own."""
    tokenizer = unigram_tokenizer()
    torch.manual_seed(0)
    fields = {
        "vocab_size": len(tokenizer) + 28, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 2, "num_heads": 2,
        "dropout_rate": 0.1, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu" if gated else "relu", "tie_word_embeddings": not gated,
        "n_positions": 512, "task_specific_params": {"summarization": {"num_beams": 4, "prefix": "summarize: "}},
    }  # fmt: skip
    model = T5ForConditionalGeneration(T5Config(**fields | changed))
    if gated:
        torch.nn.init.normal_(model.lm_head.weight, std=0.01)  # of its own, and too large as it is drawn
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
