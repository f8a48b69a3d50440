"""What is trained: the only part of a training that differs between studies."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from storage.errors import BadInput
from tasks.training.order import Order, example_at


@dataclass
class Problem:
    """A model, what it is given, what it is to make small, and how it is judged.

    `batch(indices, epoch)` gives the examples at those dataset indices, on the model's device; with loader workers it
    is called from their threads. What it draws at random it draws with `tasks.training.draws`, so that the micro-batch
    does not matter.

    `losses(model, batch)` gives one loss an example, [B]. A step makes their mean over its window small; with
    `weights`, the sum of the losses over the sum of `weights(indices, epoch)`, [B], as where a loss is a sum over the
    tokens of its example and the weight their number. Neither depends on how the window was cut.

    `evaluate(model)` gives the validation loss, or named metrics of which the one called `decides` chooses the best
    step: the lower, the better. `trivial` says what methods without learning get on that metric, by name; it then
    stands beside every validation.

    `checks` run after the step that is their key. `order` says which examples a window has: shuffled, unless it is
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
    trivial: dict[str, float] = field(default_factory=dict)
    order: Order = example_at

    def __post_init__(self) -> None:
        for name, value in self.trivial.items():
            if not (math.isfinite(value) and value > 0):
                raise BadInput(
                    f"the trivial value of {name} is {value}: it must be a finite number above 0, since "
                    f"{self.decides} is given as a multiple of it"
                )

    def window_weight(self, indices: np.ndarray, epoch: int) -> float:
        """What the summed losses of a window with the examples `indices` [B] are divided by, if they have any."""
        assert self.weights is not None
        weights = np.asarray(self.weights(indices, epoch), dtype=np.float64)
        if weights.shape != indices.shape or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise BadInput(
                f"the weights of the examples {indices.tolist()} are {weights.tolist()}: there must be one for each, "
                "finite and not negative, and not all of a step's may be 0"
            )
        return float(weights.sum())

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """What `evaluate` gives, by name; BadInput when the metric that decides is not among it."""
        found = self.evaluate(model)
        named = found if isinstance(found, dict) else {self.decides: found}
        if self.decides not in named or named.keys() & RESERVED:
            raise BadInput(
                f"evaluate gives {', '.join(named)}: {self.decides}, which decides, must be among the metrics, and "
                f"none of them may be called {' or '.join(sorted(RESERVED))}"
            )
        return {name: float(value) for name, value in named.items()}


RESERVED = frozenset({"step", "trivial", "ratio_to_trivial"})
"""Keys that stand beside the metrics in a row."""
