"""Keeps constrained weights at their allowed signs while they are trained: by a projection, or a parametrization.

Projection is stateless: each step of AdamW is followed by W <- s max(s W, 0), and AdamW's own decay is right. Through
softplus, W = s softplus(V), and V is what is trained, as in the earlier system: a step moves a weight W << 1 by its own
small share W of a step (mirror descent: Amid and Warmuth, 2020).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from tasks.monotonic.configuration import By
from tasks.monotonic.constraint import constrained_modules
from tasks.monotonic.signs import AllowedSigns, project
from tasks.training.optimizer import adamw
from tasks.training.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALLEST_WEIGHT = 1e-8
"""|W| below this is raised to it: at W = 0 the inverse is -infinity, where no gradient ever leaves."""

DECAY_EVERY_STEPS = 100


class SignedSoftplus(nn.Module):
    """W = s softplus(V) with softplus(x) = log(1 + e^x), and the exact inverse of |W|."""

    signs: torch.Tensor

    def __init__(self, signs: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("signs", signs, persistent=False)  # they come from disk, not from a checkpoint

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        return self.signs * nn.functional.softplus(v)

    def right_inverse(self, w: torch.Tensor) -> torch.Tensor:
        """V with softplus(V) = |W|: V = A + log(1 - e^-A), A = |W|, stable for small and large A."""
        a = w.abs().clamp_min(SMALLEST_WEIGHT)
        return a + torch.log(-torch.expm1(-a))

    def decay(self, v: torch.Tensor, rate: float) -> None:
        """Decays W by the factor 1 - rate in V, to first order: V -= rate W / W'(V), W'(V) = sigmoid(V)."""
        slope = torch.sigmoid(v).clamp_min(1e-30)
        v.sub_(nn.functional.softplus(v) / slope, alpha=rate)


def prepare(model: PreTrainedModel, variant: str, allowed: AllowedSigns, by: By) -> None:
    """Makes a model that stands at its start ready to be trained with its signs kept, in place.

    A layer whose weights are all 0 for good is not trained: its gradients would count where all are clipped.
    """
    layers = constrained_modules(model, variant)
    signs = allowed.of(layers)
    for name, layer in layers.items():
        if by == "softplus":
            parametrize.register_parametrization(layer, "weight", SignedSoftplus(signs[name]))
        elif not signs[name].any():
            layer.weight.requires_grad_(False)


def optimizer(
    model: PreTrainedModel, variant: str, allowed: AllowedSigns, by: By, schedule: Schedule
) -> torch.optim.AdamW:
    """AdamW as every arm uses it, which also keeps the signs of a model that `prepare` made ready."""
    layers = constrained_modules(model, variant)
    if by == "projection":
        signs = allowed.of(layers)
        pairs = [(layer.weight, signs[name].to(layer.weight.device)) for name, layer in layers.items()]
        stepper = adamw(model, schedule.budget)
        stepper.register_step_post_hook(lambda *_: _project_all(pairs))
        return stepper
    free = {f"{name}.parametrizations.weight.original" for name in layers}
    stepper = adamw(model, schedule.budget, undecayed=free)
    decay_effective_weights(stepper, list(layers.values()), schedule)
    return stepper


def bake(model: PreTrainedModel, variant: str) -> None:
    """Replaces V by the effective weight W in place, so that the model can be saved and loaded as any other."""
    for layer in constrained_modules(model, variant).values():
        if parametrize.is_parametrized(layer, "weight"):
            parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def trained_parameter(layer: nn.Module) -> torch.Tensor:
    """Tensor that the optimizer steps in a constrained layer: V where it is parametrized, else W."""
    return layer.parametrizations.weight.original if parametrize.is_parametrized(layer, "weight") else layer.weight


def trained_value(layer: nn.Module, weight: torch.Tensor) -> torch.Tensor:
    """The value of `trained_parameter` that stands for `weight`: bit for bit that of `prepare`, on the CPU."""
    return (
        layer.parametrizations.weight[0].right_inverse(weight)
        if parametrize.is_parametrized(layer, "weight")
        else weight
    )


def _project_all(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for weight, signs in pairs:
        project(weight, signs)


def decay_effective_weights(stepper: torch.optim.Optimizer, layers: list[nn.Module], schedule: Schedule) -> None:
    """Makes `stepper` also decay the W of parametrized layers as AdamW decays an ordinary matrix.

    AdamW's decay would pull V to 0, which is W = ln 2: away from zero for almost every weight. One step's
    share can be smaller than half the spacing of fp32 at V and would be lost, so the shares of DECAY_EVERY_STEPS steps
    are taken together; when, and how much, depends on the step alone.
    """
    pairs = [(trained_parameter(layer), layer.parametrizations.weight[0]) for layer in layers]
    step = 0

    @torch.no_grad()
    def decay(stepped: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal step
        # asked once, after a continuation was restored, and counted then: on a GPU to ask is to wait
        step = step + 1 if step else int(stepped.state[pairs[0][0]]["step"])
        if step % DECAY_EVERY_STEPS and step != schedule.total_steps:
            return
        since = (step - 1) // DECAY_EVERY_STEPS * DECAY_EVERY_STEPS
        rate = schedule.budget.weight_decay * sum(schedule.learning_rate(s) for s in range(since + 1, step + 1))
        for v, softplus in pairs:
            softplus.decay(v, rate)

    stepper.register_step_post_hook(decay)
