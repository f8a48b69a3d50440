"""AdamW for every arm: matrices decay, biases and norms do not."""

from collections.abc import Collection

import torch
from torch import nn

from tasks.training.budget import Budget


def adamw(model: nn.Module, budget: Budget, undecayed: Collection[str] = ()) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter, 2019) with decoupled decay on the weight matrices of `model`.

    `undecayed` names parameters that do not decay although they are matrices. Learning rates are set by the loop.
    """
    decaying: list[nn.Parameter] = []
    undecaying: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (decaying if parameter.ndim >= 2 and name not in undecayed else undecaying).append(parameter)
    groups = [
        {"params": decaying, "weight_decay": budget.weight_decay},
        {"params": undecaying, "weight_decay": 0.0},
    ]
    # fused: one pass over the weights, without temporary copies of their size
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=budget.learning_rate,
        betas=(budget.beta_1, budget.beta_2),
        fused=True,
    )
