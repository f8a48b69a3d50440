"""Language models, causal or with an encoder: from scratch or pretrained, their loss, and how they are kept.

Shape suffixes: B examples, L tokens, V vocabulary.
"""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    masking_utils,
)
from transformers.activations import ACT2FN
from transformers.utils import logging as transformers_logging

from tasks.language import foreign
from tasks.language.blocks import Blocks
from tasks.language.configuration import EncoderDecoder, FromScratch, PretrainedDirectory, PretrainedHub
from tasks.language.pairs import Pairs
from tasks.language.result import PackedPairs

transformers_logging.disable_progress_bar()  # a bar for each model load would bury our own progress
# A T5 v1.1 has a head of its own: transformers loads it as it is, and says each time to silence that.
logging.getLogger("transformers.modeling_utils").addFilter(lambda line: "we will NOT tie them" not in line.getMessage())
# Looks for several texts in a row, which no row of ours has; it waits for all that a GPU has to do before the pass.
masking_utils.find_packed_sequence_indices = lambda position_ids: None


def untrained(model: FromScratch, vocabulary_size: int, sequence_length: int) -> PreTrainedModel:
    """A network with weights drawn from `init_seed`, fp32: GPT-NeoX, or for an encoder and decoder T5."""
    torch.manual_seed(model.init_seed)
    if isinstance(model, EncoderDecoder):
        return _untrained_t5(model, vocabulary_size)
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


def _untrained_t5(model: EncoderDecoder, vocabulary_size: int) -> PreTrainedModel:
    config = T5Config(
        vocab_size=vocabulary_size,
        d_model=model.hidden_size,
        d_kv=model.hidden_size // model.attention_heads,
        d_ff=model.feed_forward_size,
        num_layers=model.layers,
        num_heads=model.attention_heads,
        dropout_rate=0.0,
        feed_forward_proj=model.activation,
        pad_token_id=0,
        eos_token_id=0,
        decoder_start_token_id=0,
    )
    network = T5ForConditionalGeneration(config)
    if model.start == "copying":
        copying_start(network)
    return network


@torch.no_grad()
def copying_start(network: T5ForConditionalGeneration) -> None:
    """Edits a fresh T5 in place so that it copies from its article before any training.

    The first encoder layer tells each position which token stands before it; the cross-attention of the last decoder
    layer looks for the position behind the last written token's like, and writes what stands there. All heads take
    part, each with its own slice of the state. Nothing else writes at first, so that nothing drowns the copy; all of it
    is trained as usual. It needs attention_heads times the heads' width to be hidden_size.
    """
    same = torch.eye(network.config.d_model)
    turned = same.roll(len(same) // 2, 0)  # a vector and its roll are nearly orthogonal: room for a second token
    for block in [*network.encoder.block, *network.decoder.block]:
        for layer in block.layer[:-1]:
            (layer.SelfAttention if hasattr(layer, "SelfAttention") else layer.EncDecAttention).o.weight.zero_()
        block.layer[-1].DenseReluDense.wo.weight.zero_()
    first = network.encoder.block[0].layer[0].SelfAttention
    first.q.weight.zero_()  # it looks by position alone,
    first.k.weight.zero_()
    first.relative_attention_bias.weight.zero_()
    first.relative_attention_bias.weight[1] = 12.0  # at the token one back,
    first.v.weight.copy_(same)
    first.o.weight.copy_(turned)  # whose embedding is written, turned, beside its own
    cross = network.decoder.block[-1].layer[1].EncDecAttention
    cross.q.weight.copy_(same)  # the last written token
    cross.k.weight.copy_(turned.T)  # against each position's predecessor, turned back,
    cross.v.weight.copy_(same)
    cross.o.weight.copy_(2.0 * same)  # and what stands there goes where the head reads


def pretrained(
    model: Path | PretrainedDirectory | PretrainedHub, cache: Path, encoder_decoder: bool = False
) -> PreTrainedModel:
    """The pretrained model in fp32; BadInput when it cannot be had, saying how to get it.

    ConnectionError, which the stage tries again, when the connection to the hub is lost.
    """
    loaded = foreign.model(model, cache, encoder_decoder=encoder_decoder)
    loaded.config.use_cache = False  # nothing is generated here, and a cache would take more memory than the logits
    return loaded


def load(path: Path) -> PreTrainedModel:
    """A model in fp32, of a folder that `save_pretrained` wrote; BadInput when weights are missing."""
    return pretrained(path, path.parent)


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


def pair_losses(model: nn.Module, tokens_BL: torch.Tensor, packed: PackedPairs) -> torch.Tensor:
    """Summed loss of each pair's summary in nats, [B]; as `tasks.language.pairs` packs them."""
    width = packed.article_tokens
    articles_BA, references_BS = tokens_BL[:, :width], tokens_BL[:, width:]
    return reference_losses(model, articles_BA, references_BS, packed.end_of_text_id).sum(dim=1)


def reference_losses(
    model: nn.Module, articles_BA: torch.Tensor, references_BS: torch.Tensor, end_of_text: int
) -> torch.Tensor:
    """-log p(token | article, tokens before it) of every token of each reference, in nats, fp32; 0 behind its end.

    Both end with an end-of-text token, and what stands behind it is padding, which is cut off as far as all have it.
    """
    read_BA, scored_BS = until_the_end(articles_BA, end_of_text), until_the_end(references_BS, end_of_text)
    articles_BA, references_BS = articles_BA[:, : read_BA.shape[1]], references_BS[:, : scored_BS.shape[1]]
    logits_BSV = model(
        input_ids=articles_BA,
        attention_mask=read_BA,
        decoder_input_ids=written_before(model, references_BS),
        decoder_attention_mask=scored_BS,
        use_cache=False,
    ).logits.float()
    losses = nn.functional.cross_entropy(logits_BSV.flatten(0, 1), references_BS.flatten(), reduction="none")
    return losses.view_as(references_BS) * scored_BS


def filled_up(sequences: Sequence[Sequence[int]], padding: int) -> torch.Tensor:
    """Token ids, or whatever else belongs to each, filled up on the right: long [B, length of the longest]."""
    return nn.utils.rnn.pad_sequence([*map(torch.tensor, sequences)], batch_first=True, padding_value=padding)


def until_the_end(tokens_BL: torch.Tensor, end_of_text: int) -> torch.Tensor:
    """True up to the first end-of-text token of each row, long [B, length of the longest]."""
    lengths_B1 = (tokens_BL == end_of_text).int().argmax(dim=1, keepdim=True) + 1
    places_L = torch.arange(int(lengths_B1.max()), device=tokens_BL.device)
    return (places_L < lengths_B1).long()


def written_before(model: nn.Module, references_BS: torch.Tensor) -> torch.Tensor:
    """What the decoder reads: the token that it starts with, and the reference without its last."""
    start = torch.full_like(references_BS[:, :1], model.config.decoder_start_token_id)
    return torch.cat([start, references_BS[:, :-1]], dim=1)


def example_losses(blocks: Blocks) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    """Losses of the examples of a packed split, [B]: means of blocks, sums of pairs, which weigh by their tokens."""
    return partial(pair_losses, packed=blocks.packed) if isinstance(blocks, Pairs) else block_losses


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    blocks: Blocks,
    batch_size: int,
    after_batch: Callable[[], None] = lambda: None,
    examples: Callable[[np.ndarray], torch.Tensor] | None = None,
) -> float:
    """Mean loss over all blocks in nats per predicted token; the sum is kept in double precision.

    `examples` gives others at the same indices, of the same weight, in place of the blocks.
    """
    model.eval()
    device, losses = next(model.parameters()).device, example_losses(blocks)
    total = 0.0
    for start in range(0, len(blocks), batch_size):
        indices = np.arange(start, min(start + batch_size, len(blocks)))
        total += losses(model, (examples or blocks.__getitem__)(indices).to(device)).double().sum().item()
        after_batch()
    return total / blocks.weight


def unigram_loss(counts: np.ndarray, blocks: Blocks) -> float:
    """Mean loss in nats of an add-one unigram model on the tokens that `validation_loss` predicts."""
    return float(unigram_token_losses(counts)[blocks.predicted()].mean())


def unigram_token_losses(counts: np.ndarray) -> np.ndarray:
    """-log p(token) in nats for every token of the vocabulary, from training counts plus one; float64 [V]."""
    return -np.log((counts + 1) / (counts.sum() + len(counts)))


MONOTONE_PARTS = "monotone-parts"
CONVEX_SHARE, CONCAVE_SHARE = 7 / 16, 7 / 16
"""Shares of the hidden units; the authors' implementation (monotonic-nn) splits 7 : 7 : 2 too."""


def monotone_parts(units: int) -> tuple[int, int, int]:
    """How many of so many hidden units are convex, concave and saturated, in that order."""
    convex, concave = round(units * CONVEX_SHARE), round(units * CONCAVE_SHARE)
    return convex, concave, units - convex - concave


class MonotoneParts(nn.Module):
    """ReLU(z) for the first hidden units, -ReLU(-z) for the next, z between -1 and 1 for the last; on the last axis.

    None of them ever falls. With non-negative weights, ReLU alone makes convex functions only; the three together
    approximate every monotone function (Runje and Shankaranarayana, ICML 2023, arXiv 2205.11775; the saturated unit
    is made of ReLU as there).
    """

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        convex, concave, saturated = z.split(monotone_parts(z.shape[-1]), dim=-1)
        return torch.cat([convex.relu(), -(-concave).relu(), saturated.clamp(-1, 1)], dim=-1)


ACT2FN[MONOTONE_PARTS] = MonotoneParts  # by this name a saved model's config.json asks for it
