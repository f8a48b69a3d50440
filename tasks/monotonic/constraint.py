"""Non-negative weights by construction: W = softplus(V), and the proof that it holds where it should.

Method: Cooper et al., arXiv 2602.02686. W >= 0 makes a feed-forward sublayer monotone only under a non-decreasing
activation; GELU, which GPT-NeoX uses, decreases below about -0.75. So this is a constraint on weights of named
sublayers: never a claim that the model, or even the sublayer, is a monotone function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP

from storage.errors import BadInput, CheckFailed
from tasks.training.schedule import Schedule

SMALLEST_WEIGHT = 1e-8
"""|W| below this is raised to it: at W = 0 the inverse is -infinity, where no gradient ever leaves."""

DECAY_EVERY_STEPS = 100

ARCHITECTURES: dict[type[nn.Module], dict[str, list[str]]] = {
    GPTNeoXMLP: {"mlp_in": ["dense_h_to_4h"], "mlp_both": ["dense_h_to_4h", "dense_4h_to_h"]},
}
"""Feed-forward class -> variant -> attributes of it. By class, so that no name elsewhere matches by accident."""


class Softplus(nn.Module):
    """W = softplus(V) = log(1 + e^V), with the exact inverse of |W|."""

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(v)

    def right_inverse(self, w: torch.Tensor) -> torch.Tensor:
        """V with softplus(V) = |W|: V = A + log(1 - e^-A), A = |W|, stable for small and large A."""
        a = w.abs().clamp_min(SMALLEST_WEIGHT)
        return a + torch.log(-torch.expm1(-a))


def constrained_modules(model: nn.Module, variant: str) -> dict[str, nn.Module]:
    """Dotted name -> the linear layer, for every layer that `variant` names; BadInput when there is none."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        for kind, variants in ARCHITECTURES.items():
            if isinstance(module, kind):
                found |= {f"{name}.{attribute}": getattr(module, attribute) for attribute in variants[variant]}
    if not found:
        known = ", ".join(kind.__name__ for kind in ARCHITECTURES)
        raise BadInput(
            f"constraint.variant {variant} matches no layer of {type(model).__name__}: known feed-forward layers "
            f"are {known}. Use a model of that architecture"
        )
    return found


def constrain(model: nn.Module, variant: str) -> dict[str, nn.Module]:
    """Re-parametrizes the layers of `variant` in place, starting from |W|. Returns them by name."""
    modules = constrained_modules(model, variant)
    for module in modules.values():
        parametrize.register_parametrization(module, "weight", Softplus())
    return modules


def free_parameters(model: nn.Module, variant: str) -> dict[str, nn.Parameter]:
    """Full parameter name -> V, for every constrained layer."""
    return {
        f"{name}.parametrizations.weight.original": module.parametrizations.weight.original
        for name, module in constrained_modules(model, variant).items()
    }


def bake(model: nn.Module, variant: str) -> None:
    """Replaces V by the effective weight W in place, so that the model can be saved and loaded as any other."""
    for module in constrained_modules(model, variant).values():
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


@torch.no_grad()
def verify(model: nn.Module, variant: str) -> dict[str, Any]:
    """Looks at the effective weight of every layer that `variant` names; CheckFailed unless all are >= 0.

    Returns counts, minimum and maximum. Works on constrained and on baked models alike, because it reads
    `module.weight`, never the stored parameters.
    """
    modules = constrained_modules(model, variant)
    weights = {name: module.weight.detach() for name, module in modules.items()}
    for name, weight in weights.items():
        smallest = weight.min().item()
        if not smallest >= 0 or not torch.isfinite(weight).all():
            raise CheckFailed(f"every weight of {name} is finite and >= 0", smallest, ">= 0")
    return {
        "variant": variant,
        "layers_checked": len(weights),
        "layers": sorted(weights),
        "weights_checked": sum(weight.numel() for weight in weights.values()),
        "min_weight": min(weight.min().item() for weight in weights.values()),
        "max_weight": max(weight.max().item() for weight in weights.values()),
    }


def decay_effective_weights(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], schedule: Schedule
) -> None:
    """Makes `optimizer` also decay W = softplus(V) as AdamW decays an ordinary matrix.

    AdamW's decay would pull V to 0, which is W = ln 2: away from zero for almost every weight. Decoupled decay of
    W by a factor (1 - rate) is, to first order, V -= rate * W / W'(V), with W'(V) = sigmoid(V). One step's share
    can be smaller than half the spacing of fp32 at V and would be lost, so the shares of DECAY_EVERY_STEPS steps
    are taken together; when, and how much, depends on the step alone.
    """

    @torch.no_grad()
    def decay(stepped: torch.optim.Optimizer, *_: Any) -> None:
        step = int(stepped.state[parameters[0]]["step"])
        if step % DECAY_EVERY_STEPS and step != schedule.total_steps:
            return
        since = (step - 1) // DECAY_EVERY_STEPS * DECAY_EVERY_STEPS
        rate = schedule.budget.weight_decay * sum(schedule.learning_rate(s) for s in range(since + 1, step + 1))
        for v in parameters:
            v.sub_(nn.functional.softplus(v) / torch.sigmoid(v).clamp_min(1e-30), alpha=rate)

    optimizer.register_step_post_hook(decay)
