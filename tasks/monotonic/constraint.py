"""Non-negative weights by construction: W = softplus(V), and the proof that it holds where it should.

Method: Cooper et al., arXiv 2602.02686. W >= 0 makes a feed-forward sublayer monotone only under a non-decreasing
activation; GELU, which GPT-NeoX and GPT-2 use, decreases below about -0.75. A gated sublayer (Llama, Qwen),
W_down(SiLU(W_gate x) * W_up x), is covered by no theorem at all: SiLU decreases below about -1.28, and a product of
two functions that grow need not grow where one of them is negative, even with all three matrices non-negative. With
an attention output constrained, what attention mixes is still anything. So this is a constraint on weights of named
sublayers: never a claim that the model, or even the sublayer, is a monotone function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from storage.errors import BadInput, CheckFailed
from tasks.monotonic.result import VerifiedWeights
from tasks.training.schedule import Schedule

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SMALLEST_WEIGHT = 1e-8
"""|W| below this is raised to it: at W = 0 the inverse is -infinity, where no gradient ever leaves."""

DECAY_EVERY_STEPS = 100

Variants = dict[str, dict[str, list[str]]]
"""Variant -> class of a sublayer -> attributes of it that hold a constrained matrix."""


def _plain(feed_forward: str, into: str, out_of: str, attention: str, attention_out: str) -> Variants:
    return {
        "mlp_in": {feed_forward: [into]},
        "mlp_both": {feed_forward: [into, out_of]},
        "mlp_in_attn_out": {feed_forward: [into], attention: [attention_out]},
    }


def _gated(feed_forward: str) -> Variants:
    return {
        "gated_updown": {feed_forward: ["up_proj", "down_proj"]},
        "gated_all": {feed_forward: ["gate_proj", "up_proj", "down_proj"]},
    }


ARCHITECTURES: dict[str, Variants] = {
    "gpt_neox": _plain("GPTNeoXMLP", "dense_h_to_4h", "dense_4h_to_h", "GPTNeoXAttention", "dense"),
    "gpt2": _plain("GPT2MLP", "c_fc", "c_proj", "GPT2Attention", "c_proj"),
    "llama": _gated("LlamaMLP"),
    "qwen2": _gated("Qwen2MLP"),
    "qwen3": _gated("Qwen3MLP"),
}
"""Architecture, as transformers calls it, -> its variants.

A layer is found by the class that it belongs to, so that no name elsewhere matches by accident: GPT-2's `c_proj` is
one attribute of its feed-forward layer and another of its attention. Classes stand here as text because importing
five architectures costs seconds. GPT-2's matrices are `Conv1D`, [in, out] and not [out, in]: a sign has no shape.
"""


class Softplus(nn.Module):
    """W = softplus(V) = log(1 + e^V), with the exact inverse of |W|."""

    def forward(self, v: torch.Tensor) -> torch.Tensor:
        return nn.functional.softplus(v)

    def right_inverse(self, w: torch.Tensor) -> torch.Tensor:
        """V with softplus(V) = |W|: V = A + log(1 - e^-A), A = |W|, stable for small and large A."""
        a = w.abs().clamp_min(SMALLEST_WEIGHT)
        return a + torch.log(-torch.expm1(-a))


def constrained_modules(model: PreTrainedModel, variant: str) -> dict[str, nn.Module]:
    """Dotted name -> the layer, a Linear or Conv1D, for every layer that `variant` names.

    BadInput when the architecture is unknown or has no such variant; CheckFailed when a transformer block of the
    model lacks the sublayer, or has two.
    """
    architecture = _architecture(model, variant)
    variants = ARCHITECTURES[architecture]
    if variant not in variants:
        raise BadInput(
            f"constraint.variant {variant} does not exist in {type(model).__name__} (architecture {architecture}), "
            f"which has {', '.join(variants)}: set constraint.variant to one of these"
        )
    found: dict[str, nn.Module] = {}
    for kind, attributes in variants[variant].items():
        holders = {name: module for name, module in model.named_modules() if _is(module, architecture, kind)}
        if len(holders) != model.config.num_hidden_layers:
            raise CheckFailed(
                f"{type(model).__name__} has one {kind} in each of its transformer blocks",
                len(holders),
                model.config.num_hidden_layers,
            )
        found |= {
            f"{name}.{attribute}": getattr(holders[name], attribute) for name in holders for attribute in attributes
        }
    return found


def _architecture(model: PreTrainedModel, variant: str) -> str:
    """The one architecture whose sublayers the model has; BadInput when there is none, or several."""
    kinds = {
        name: {kind for classes in variants.values() for kind in classes} for name, variants in ARCHITECTURES.items()
    }
    found = {
        name for module in model.modules() for name in ARCHITECTURES if any(_is(module, name, k) for k in kinds[name])
    }
    if len(found) != 1:
        known = ", ".join(f"{name} ({'/'.join(sorted(kinds[name]))})" for name in ARCHITECTURES)
        mixed = f" alone, but of {' and '.join(sorted(found))}" if found else ""
        raise BadInput(
            f"constraint.variant {variant} matches no layer of {type(model).__name__}{mixed}: known architectures are "
            f"{known}. Use a model of one of these"
        )
    return found.pop()


def _is(module: nn.Module, architecture: str, kind: str) -> bool:
    """Whether the module is of exactly this class of transformers."""
    home = f"transformers.models.{architecture}.modeling_{architecture}"
    return type(module).__name__ == kind and type(module).__module__ == home


def constrain(model: PreTrainedModel, variant: str) -> dict[str, nn.Module]:
    """Re-parametrizes the layers of `variant` in place, starting from |W|. Returns them by name."""
    modules = constrained_modules(model, variant)
    for module in modules.values():
        parametrize.register_parametrization(module, "weight", Softplus())
    return modules


def free_parameters(model: PreTrainedModel, variant: str) -> dict[str, nn.Parameter]:
    """Full parameter name -> V, for every constrained layer."""
    return {
        f"{name}.parametrizations.weight.original": module.parametrizations.weight.original
        for name, module in constrained_modules(model, variant).items()
    }


def bake(model: PreTrainedModel, variant: str) -> None:
    """Replaces V by the effective weight W in place, so that the model can be saved and loaded as any other."""
    for module in constrained_modules(model, variant).values():
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=True)


@torch.no_grad()
def verify(model: PreTrainedModel, variant: str) -> VerifiedWeights:
    """Reads the effective weight of every layer that `variant` names; CheckFailed unless all are >= 0.

    Returns counts, minimum and maximum. Works on constrained and on baked models alike, because it reads
    `module.weight`, never the stored parameters.
    """
    modules = constrained_modules(model, variant)
    weights = {name: module.weight.detach() for name, module in modules.items()}
    for name, weight in weights.items():
        smallest = weight.min().item()
        if not smallest >= 0 or not torch.isfinite(weight).all():
            raise CheckFailed(f"every weight of {name} is finite and >= 0", smallest, ">= 0")
    return VerifiedWeights(
        variant=variant,
        layers_checked=len(weights),
        layers=sorted(weights),
        weights_checked=sum(weight.numel() for weight in weights.values()),
        min_weight=min(weight.min().item() for weight in weights.values()),
        max_weight=max(weight.max().item() for weight in weights.values()),
    )


def decay_effective_weights(
    optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter], schedule: Schedule
) -> None:
    """Makes `optimizer` also decay W = softplus(V) as AdamW decays an ordinary matrix.

    AdamW's decay would pull V to 0, which is W = ln 2: away from zero for almost every weight. Decoupled decay of
    W by a factor (1 - rate) is, to first order, V -= rate * W / W'(V), with W'(V) = sigmoid(V). One step's share
    can be smaller than half the spacing of fp32 at V and would be lost, so the shares of DECAY_EVERY_STEPS steps
    are taken together; when, and how much, depends on the step alone.
    """

    step = 0

    @torch.no_grad()
    def decay(stepped: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal step
        # asked once, after a continuation was restored, and counted then: on a GPU to ask is to wait
        step = step + 1 if step else int(stepped.state[parameters[0]]["step"])
        if step % DECAY_EVERY_STEPS and step != schedule.total_steps:
            return
        since = (step - 1) // DECAY_EVERY_STEPS * DECAY_EVERY_STEPS
        rate = schedule.budget.weight_decay * sum(schedule.learning_rate(s) for s in range(since + 1, step + 1))
        for v in parameters:
            v.sub_(nn.functional.softplus(v) / torch.sigmoid(v).clamp_min(1e-30), alpha=rate)

    optimizer.register_step_post_hook(decay)
