"""Causal language models: from scratch or pretrained, their loss on blocks, and how they are kept.

Shape suffixes: B examples, L tokens, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import GgufConfig, GPTNeoXConfig, GPTNeoXForCausalLM, PreTrainedModel
from transformers.activations import ACT2FN
from transformers.utils import logging as transformers_logging

from storage import external
from storage.errors import BadInput, CheckFailed
from tasks.language import foreign
from tasks.language.activation import MONOTONE_PARTS, MonotoneParts
from tasks.language.blocks import Blocks
from tasks.language.configuration import FromScratch, PretrainedDirectory, PretrainedHub
from tasks.language.hub import reachable
from tasks.language.result import TrainedCheck

transformers_logging.disable_progress_bar()  # a bar for each model load would bury our own progress
ACT2FN[MONOTONE_PARTS] = MonotoneParts  # by this name a saved model's config.json asks for it


def untrained(model: FromScratch, vocabulary_size: int, sequence_length: int) -> PreTrainedModel:
    """A GPT-NeoX network with weights drawn from `init_seed`, fp32."""
    torch.manual_seed(model.init_seed)
    config = GPTNeoXConfig(
        vocab_size=vocabulary_size,
        hidden_size=model.hidden_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.attention_heads,
        intermediate_size=model.feed_forward_size,
        hidden_act=model.activation,
        max_position_embeddings=sequence_length,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=False,
    )
    return GPTNeoXForCausalLM(config)


def pretrained(model: PretrainedDirectory | PretrainedHub, cache: Path) -> PreTrainedModel:
    """The pretrained model in fp32; BadInput when it cannot be had, saying how to get it.

    ConnectionError, which the stage tries again, when the connection to the hub is lost.
    """
    if isinstance(model, PretrainedDirectory):
        return load(Path(model.path).expanduser())
    advice = (
        "Check the name and the revision on huggingface.co; gated models need HF_TOKEN in the environment; without "
        "a network, copy the model here and set model.source=directory and model.path"
    )
    with reachable(f"the model {model.model} at revision {model.revision} cannot be loaded from the hub", advice):
        loaded, report = foreign.model(
            model.model,
            f"the hub model {model.model}",
            revision=model.revision,
            dtype=torch.float32,
            cache_dir=cache / "hub",
        )
    _require_all_weights(report, f"the hub model {model.model}")
    return loaded


def load(path: Path) -> PreTrainedModel:
    """A model in fp32: a folder that `save_pretrained` wrote, or a GGUF file; BadInput when weights are missing."""
    if path.suffix == external.GGUF_SUFFIX:
        return _load_gguf(path)
    try:
        model, report = foreign.model(path, f"the model folder {path}", dtype=torch.float32, local_files_only=True)
    except (BadInput, MemoryError):
        raise
    except Exception as error:  # damaged weights, and what is none, fail in many ways
        raise BadInput(
            f"the model folder {path} cannot be loaded: {type(error).__name__}: {error}. Copy the whole folder again, "
            "or save the model with save_pretrained, which writes safetensors (a pickle under that name is none)"
        ) from error
    _require_all_weights(report, f"the model folder {path}")
    model.config.use_cache = False  # nothing is generated here, and a cache would take more memory than the logits
    return model


def _load_gguf(path: Path) -> PreTrainedModel:
    """The model of a GGUF file, de-quantized: from here on a plain fp32 model, which trains and saves as any other."""
    with external.gguf_alone(path) as folder:
        try:
            model, report = foreign.model(
                folder,
                f"the GGUF file {path}",
                gguf_file=path.name,
                quantization_config=GgufConfig(dequantize=True),
                dtype=torch.float32,
                local_files_only=True,
            )
        except Exception as error:  # a damaged file fails in many ways, all of them the file's
            raise BadInput(
                f"the GGUF file {path} cannot be loaded: {type(error).__name__}: {error}. Copy the whole file, or take "
                "a model of an architecture that transformers reads from GGUF"
            ) from error
    _require_all_weights(report, f"the GGUF file {path}")
    return model


def _require_all_weights(report: dict[str, Any], what: str) -> None:
    """transformers fills what is missing with random numbers and goes on; here that is an error."""
    if missing := sorted(report["missing_keys"]) + sorted(report["mismatched_keys"], key=str):
        raise BadInput(f"{what} lacks weights ({len(missing)}, such as {missing[0]}): copy the whole model")


def save(
    model: PreTrainedModel, tokenizer_folder: Path, folder: Path, state: dict[str, torch.Tensor] | None = None
) -> None:
    """Writes model and tokenizer into `folder` as `save_pretrained` does: a folder that stands on its own.

    `state` holds the weights to write, where they are not those that the model names its own. `tokenizer_folder` holds
    a tokenizer and nothing else; a name that the model wrote too raises FileExistsError.
    """
    model.config.use_cache = True
    model.save_pretrained(folder, state_dict=state)
    model.config.use_cache = False
    for file in sorted(tokenizer_folder.iterdir()):
        with (folder / file.name).open("xb") as copy:
            copy.write(file.read_bytes())


def block_losses(model: nn.Module, tokens_BL: torch.Tensor, read_BL: torch.Tensor | None = None) -> torch.Tensor:
    """Mean loss of each block in nats per predicted token, [B]; L - 1 tokens are predicted in each."""
    return token_losses(model, tokens_BL, read_BL).mean(dim=1)


def token_losses(model: nn.Module, tokens_BL: torch.Tensor, read_BL: torch.Tensor | None = None) -> torch.Tensor:
    """-log p(token | tokens before it) of every token but the first, in nats, fp32, [B, L - 1].

    With `read_BL` the model reads these in place of the tokens before. Positions are counted from the left and
    attention is causal, so padding on the right changes nothing.
    """
    read_BL = tokens_BL if read_BL is None else read_BL
    logits_BLV = model(input_ids=read_BL[:, :-1]).logits.float()
    losses = nn.functional.cross_entropy(logits_BLV.flatten(0, 1), tokens_BL[:, 1:].flatten(), reduction="none")
    return losses.view(tokens_BL.shape[0], -1)


@torch.no_grad()
def validation_loss(
    model: nn.Module, blocks: Blocks, batch_size: int, after_batch: Callable[[], None] = lambda: None
) -> float:
    """Mean loss over all blocks in nats per predicted token; the sum is kept in double precision."""
    model.eval()
    device = next(model.parameters()).device
    total = 0.0
    for start in range(0, len(blocks), batch_size):
        indices = np.arange(start, min(start + batch_size, len(blocks)))
        total += block_losses(model, blocks[indices].to(device)).double().sum().item()
        after_batch()
    return total / len(blocks)


def unigram_loss(counts: np.ndarray, blocks: Blocks) -> float:
    """Mean loss in nats of an add-one unigram model on the tokens that `validation_loss` predicts."""
    losses = unigram_token_losses(counts)
    predicted = blocks[np.arange(len(blocks))][:, 1:].numpy()
    return float(losses[predicted].mean())


def unigram_token_losses(counts: np.ndarray) -> np.ndarray:
    """-log p(token) in nats for every token of the vocabulary, from training counts plus one; float64 [V]."""
    return -np.log((counts + 1) / (counts.sum() + len(counts)))


def perplexity(loss_nats: float) -> float:
    """exp(loss): how many equally likely tokens the model is as unsure as. At most e^700, which JSON can hold."""
    return math.exp(min(loss_nats, 700.0))


def require_trained(losses: dict[str, float], max_ratios: dict[str, float]) -> TrainedCheck:
    """Compares the base model's validation perplexity with each reference's; CheckFailed when it is too high.

    `losses` holds `base` and the references in nats; returns perplexities and ratios for the result.
    """
    perplexities = {name: perplexity(loss) for name, loss in losses.items()}
    ratios = {name: perplexities["base"] / perplexities[name] for name in max_ratios}
    for name, limit in max_ratios.items():
        if not ratios[name] <= limit:
            raise CheckFailed(
                f"the base model is trained (validation perplexity as a multiple of the {name} model's)",
                round(ratios[name], 4),
                f"at most {limit}",
                "Train longer (model.pretraining.epochs), use more text, or correct the model's folder",
            )
    return TrainedCheck(validation_perplexity=perplexities, ratio_of_perplexities=ratios, required_ratio=max_ratios)
