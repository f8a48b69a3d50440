"""The problem of a training: the only part that differs between studies."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from storage.errors import BadInput
from tasks.training.budget import Budget
from tasks.training.order import Order, example_at


@dataclass
class Problem:
    """A model with its data, loss, and evaluation.

    `batch(indices, epoch)` returns the examples at those dataset indices, on the model's device; loader workers call it
    from their threads. It draws random numbers with `tasks.training.draws`, so that the micro-batch does not matter.

    `losses(model, batch)` returns the losses of the examples, [B]. A step minimizes their mean over its window; with
    `weights`, the sum of the losses over the sum of `weights(indices, epoch)`, [B], as where a loss is a sum over the
    tokens of its example and the weight their number. Neither depends on how the window was cut.

    `evaluate(model)` returns the validation loss, or named metrics of which the one called `decides` chooses the best
    step: the lower, the better, unless `higher` has its name, as of an accuracy. `trivial` are the values of methods
    without learning on that metric, by name; each validation then has them beside it.

    `checks` run after the step that is their key. `order` chooses the examples of a window: shuffled, unless it is
    another function of the same arguments (`tasks.training.order`).
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Callable[[np.ndarray, int], Any]
    losses: Callable[[nn.Module, Any], torch.Tensor]
    evaluate: Callable[[nn.Module], float | dict[str, float]]
    checks: dict[int, list[Callable[[nn.Module], None]]] = field(default_factory=dict)
    weights: Callable[[np.ndarray, int], np.ndarray] | None = None
    decides: str = "validation_loss"
    higher: Collection[str] = ()
    trivial: dict[str, float] = field(default_factory=dict)
    order: Order = example_at

    def __post_init__(self) -> None:
        if isinstance(self.higher, str):
            raise BadInput(f"Problem.higher is {self.higher!r}: it holds names of metrics, such as ({self.higher!r},)")
        for name, value in self.trivial.items():
            if not (math.isfinite(value) and value > 0):
                raise BadInput(
                    f"the trivial value of {name} is {value}: it must be a finite number above 0, since "
                    f"{self.decides} is given as a multiple of it"
                )

    @property
    def higher_decides(self) -> bool:
        """True where a higher value of the metric that decides is better."""
        return self.decides in self.higher

    def window_weight(self, indices: np.ndarray, epoch: int) -> float:
        """The divisor of the summed losses of a window with the examples `indices` [B], if they have weights."""
        assert self.weights is not None
        weights = np.asarray(self.weights(indices, epoch), dtype=np.float64)
        if weights.shape != indices.shape or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise BadInput(
                f"the weights of the examples {indices.tolist()} are {weights.tolist()}: there must be one for each, "
                "finite and not negative, and not all of a step's may be 0"
            )
        return float(weights.sum())

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """The metrics of `evaluate` by name; BadInput when the one that decides is missing."""
        value = self.evaluate(model)
        metrics = value if isinstance(value, dict) else {self.decides: value}
        self.require_names(metrics)
        return {name: float(number) for name, number in metrics.items()}

    def require_names(self, metrics: Collection[str]) -> None:
        """BadInput where a metric that is named is missing from these, or one of them has the name of another thing."""
        there = f"the metrics of a validation are {', '.join(metrics)}"
        if self.decides not in metrics or RESERVED.intersection(metrics):
            raise BadInput(
                f"{there}: {self.decides}, which decides, must be among them, and none may be called "
                f"{' or '.join(sorted(RESERVED))}"
            )
        if strange := set(self.higher).difference(metrics):
            raise BadInput(f"{there}, and Problem.higher names {', '.join(sorted(strange))}")


RESERVED = frozenset({"step", "trivial", "ratio_to_trivial", "higher_is_better"})
"""Other keys in a row of metrics."""


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
