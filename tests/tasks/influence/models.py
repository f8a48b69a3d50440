"""Small models with their tasks, and influence by brute force."""

from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tasks.influence.factors import compute_factors
from tasks.influence.plan import Limits, Machine, ModulePlan, factor_plan
from tasks.influence.task import Task, token_losses

HERE = Machine(memory_bytes=1 << 34)


def classifier(width: int = 6, examples: int = 40, layers: int = 2, seed: int = 0) -> Task:
    """A perceptron in fp64 on normal inputs of 5 and 3 classes."""
    torch.manual_seed(seed)
    sizes = [5, *([width] * (layers - 1)), 3]
    linear = [nn.Linear(*pair) for pair in pairwise(sizes)]
    model = nn.Sequential(*(part for layer in linear for part in (layer, nn.Tanh())))[:-1].double()
    inputs, labels = torch.randn(examples, 5).double(), torch.randint(0, 3, (examples,))
    return Task(
        model,
        examples,
        lambda indices: (inputs[indices], labels[indices]),
        lambda network, batch, generator: token_losses(network(batch[0]), batch[1], generator),
    )


class Causal(nn.Module):
    """A causal language model of one layer; token 0 is padding. `reads_padding` is the defect."""

    def __init__(self, tied: bool, reads_padding: bool) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8, padding_idx=0), nn.Linear(8, 11, bias=False)
        self.query, self.value = nn.Linear(8, 16), nn.Linear(8, 8)
        self.reads_padding = reads_padding
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        values, length = self.embedding(tokens), tokens.shape[1]
        allowed = torch.ones(length, length, dtype=torch.bool).tril()
        if not self.reads_padding:
            allowed = allowed & (tokens != 0)[:, None] | torch.eye(length, dtype=torch.bool)
        query, key = self.query(values).chunk(2, -1)
        mixed = functional.scaled_dot_product_attention(query, key, self.value(values), attn_mask=allowed)
        return self.head(values + mixed)


def language(tied: bool = False, reads_padding: bool = False, examples: int = 12) -> Task:
    """Texts of 3 to 7 tokens, padded on the left to the longest of their batch; the loss of each next token."""
    torch.manual_seed(0)
    texts = [torch.randint(1, 11, (3 + index % 5,)) for index in range(examples)]

    def batch(indices: np.ndarray) -> torch.Tensor:
        longest = max(len(texts[index]) for index in indices)
        return torch.stack([functional.pad(texts[index], (longest - len(texts[index]), 0)) for index in indices])

    def losses(network: nn.Module, tokens: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        labels = torch.where(tokens[:, :-1] == 0, -100, tokens[:, 1:])
        return token_losses(network(tokens)[:, :-1], labels, generator)

    model = Causal(tied, reads_padding).double()
    return Task(model, examples, batch, losses, lambda tokens, module: tokens != 0)


@cache
def t5_without_weights() -> nn.Module:
    """t5-small v1.1."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6, "vocab_size": 32128}
    with torch.device("meta"):
        return T5ForConditionalGeneration(T5Config(**sizes, feed_forward_proj="gated-gelu"))


def everything(task: Task) -> np.ndarray:
    return np.arange(task.size)


def planned(task: Task, **limits: object) -> list[ModulePlan]:
    return factor_plan(task.model, HERE, Limits(**limits))


def diagonal(task: Task) -> list[ModulePlan]:
    """As where the memory is for no eigenvectors."""
    return [replace(item, row_block=1, column_block=1, treatment="diagonal") for item in planned(task)]


def factors(task: Task, folder: Path, **options: object) -> Path:
    """Finished EK-FAC factors of all examples with true labels."""
    compute_factors(task, everything(task), folder, planned(task), **{"labels": "true", **options})
    return folder


def gradients_by_autograd(task: Task) -> dict[str, torch.Tensor]:
    """The gradient of each example by each parameter, [N, elements], each from a batch of its own."""
    task.model.eval()
    rows = []
    for index in range(task.size):
        loss = task.losses(task.model, task.batch(np.array([index])), None).sum()
        rows.append(torch.autograd.grad(loss, [*task.model.parameters()], materialize_grads=True))
    names = [name for name, _ in task.model.named_parameters()]
    return {name: torch.stack([row[at].flatten() for row in rows]) for at, name in enumerate(names)}


def by_layer(task: Task) -> list[torch.Tensor]:
    """The same by module, its weight and bias together: [N, elements]."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, gradients in gradients_by_autograd(task).items():
        found.setdefault(name.rsplit(".", 1)[0], []).append(gradients)
    return [torch.cat(parts, 1) for parts in found.values()]
