"""The classifiers of texts that studies train: a small one of their own, or a T5 that was pretrained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, T5Config, T5ForConditionalGeneration

from storage import durable
from storage.errors import BadInput
from storage.tensors import read_tensors, write_tensors
from tasks.language import foreign
from tasks.language.bag import Bag, numbered
from tasks.language.configuration import BagOfWords, PretrainedDirectory, PretrainedHub
from tasks.language.model import pretrained
from tasks.language.tokenizer import load_tokenizer

NAMED = "labels.json"


class T5Labels(nn.Module):
    """A T5 that answers a text, ids [B, T] of its tokenizer padded behind, with the first piece of a label's name.

    Logits are [B, labels]. Only that piece is written, and only the labels' pieces are compared, so what the decoder
    reads is the same for all texts: its self-attention looks at one position, whose query and key decide nothing and
    have no gradient.
    """

    kinds: tuple[str, ...] = ("linear",)
    excluded: tuple[str, ...] = ("decoder.*.SelfAttention.[qk]",)
    """What influence asks of it: its linear layers, but for those that decide nothing."""

    def __init__(
        self, network: T5ForConditionalGeneration, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str]
    ) -> None:
        super().__init__()
        self.config, self.tokenizer, self.labels = network.config, tokenizer, [*labels]
        pieces = [ids[0] for ids in tokenizer(self.labels, add_special_tokens=False)["input_ids"]]
        if len({*pieces}) < len(pieces):
            raise BadInput(f"the labels {', '.join(labels)} begin with the same piece of the tokenizer: rename one")
        self.encoder, self.decoder = network.encoder, network.decoder
        self.last = nn.Linear(self.config.d_model, len(pieces), bias=False)
        scale = self.config.d_model**-0.5 if self.config.scale_decoder_outputs else 1.0
        self.last.weight = nn.Parameter(network.lm_head.weight.detach()[pieces] * scale)

    def encoded(self, texts: Sequence[str]) -> torch.Tensor:
        """Ids of the texts, [N, longest], padded behind."""
        ids = [torch.tensor(row) for row in self.tokenizer([*texts])["input_ids"]]
        return pad_sequence(ids, batch_first=True, padding_value=self.config.pad_token_id)

    def real(self, ids: torch.Tensor, module: str) -> torch.Tensor | None:
        """Which positions of a module's input are tokens of a text, [B, T]; None: there is one, which is."""
        of_text = module.startswith("encoder.") or module.endswith(("EncDecAttention.k", "EncDecAttention.v"))
        return ids != self.config.pad_token_id if of_text else None

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        """What the last layer reads, [B, d_model]."""
        mask = ids != self.config.pad_token_id
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        start = torch.full_like(ids[:, :1], self.config.decoder_start_token_id)
        written = self.decoder(
            input_ids=start, encoder_hidden_states=states, encoder_attention_mask=mask, use_cache=False
        )
        return written.last_hidden_state[:, 0]

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.hidden(ids))

    def save(self, folder: Path) -> None:
        """A folder that `load` reads, with the tokenizer."""
        self.config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        durable.write_json(folder / NAMED, self.labels)
        state = {name: weight.cpu() for name, weight in self.state_dict().items() if ".embed_tokens." not in name}
        shared = self.encoder.embed_tokens.weight.cpu()
        write_tensors(folder / "model.safetensors", state | {"shared.weight": shared})

    @classmethod
    def load(cls, folder: Path) -> T5Labels:
        network = T5ForConditionalGeneration(T5Config.from_dict(durable.read_json(folder / "config.json")))
        model = cls(network, foreign.kept_tokenizer(folder), durable.read_json(folder / NAMED))
        weights = read_tensors(folder / "model.safetensors")
        shared = weights.pop("shared.weight")
        model.load_state_dict(weights | {f"{part}.embed_tokens.weight": shared for part in ("encoder", "decoder")})
        return model


Classifier = Bag | T5Labels


def new_classifier(
    config: BagOfWords | PretrainedDirectory | PretrainedHub, texts: Sequence[str], labels: Sequence[str], cache: Path
) -> Classifier:
    """The classifier that a training begins with, of these words and labels; BadInput where it is no T5 and no bag."""
    if isinstance(config, BagOfWords):
        return Bag(numbered(texts), labels, config.embedding, config.hidden)
    network = pretrained(config, cache, encoder_decoder=True)
    if network.config.model_type != "t5":
        raise BadInput(f"model: a {type(network).__name__} is no T5: name one, or take {{source: bag}}")
    return T5Labels(network, load_tokenizer(config, [], cache), labels)


def kept_classifier(folder: Path) -> Classifier:
    """What a stage has kept, without dropout."""
    return (T5Labels if (folder / NAMED).is_file() else Bag).load(folder).eval()


@torch.no_grad()
def logits_of(model: Classifier, ids: torch.Tensor, batch: int) -> torch.Tensor:
    """[N, labels] of the ids [N, T], `batch` at a time."""
    return torch.cat([model(some) for some in ids.split(batch)])


@torch.no_grad()
def states_of(model: Classifier, ids: torch.Tensor, labels: torch.Tensor, batch: int) -> tuple[np.ndarray, np.ndarray]:
    """What the last layer reads of each text, fp64 [N, d], and the loss of its label, nats [N]."""
    hidden = torch.cat([model.hidden(some) for some in ids.split(batch)])
    losses = functional.cross_entropy(model.last(hidden), labels, reduction="none")
    return hidden.double().cpu().numpy(), losses.cpu().numpy()
