"""The classifiers of texts that studies train: a small one of their own, or a T5 that was pretrained."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from storage.errors import BadInput
from tasks.language.bag import Bag, numbered
from tasks.language.configuration import BagOfWords, PretrainedDirectory, PretrainedHub
from tasks.language.model import pretrained
from tasks.language.t5_labels import NAMED, T5Labels
from tasks.language.tokenizer import load_tokenizer

Classifier = Bag | T5Labels


def new_classifier(
    config: BagOfWords | PretrainedDirectory | PretrainedHub, texts: Sequence[str], labels: Sequence[str], cache: Path
) -> Classifier:
    """As training begins with it, of words and labels of these; BadInput where a pretrained one is no T5."""
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
