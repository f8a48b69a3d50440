"""Keeps constrained weights at their allowed signs while they are trained, by a projection or a parametrization, and
measures how far they move, beside the free matrices.

Projection is stateless: each step of AdamW is followed by W <- s max(s W, 0), and AdamW's own decay is right. Through
softplus, W = s softplus(V), and V is what is trained, as in the earlier system: a step moves a weight W << 1 by its own
small share W of a step (mirror descent: Amid and Warmuth, 2020).
"""

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from storage.errors import CheckFailed
from tasks.monotonic.constraint import AllowedSigns, constrained_modules, project
from tasks.monotonic.result import Movement
from tasks.monotonic.stages import By
from tasks.training.problem import adamw
from tasks.training.schedule import Schedule

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
    def decay(stepped: torch.optim.Optimizer, *_: object) -> None:
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


@torch.no_grad()
def measure_movement(model: PreTrainedModel, variant: str, start: PreTrainedModel) -> Movement:
    """How far the effective weights of `model` lie from those of `start`, the model that its training began with.

    The yardstick of a parametrized layer is the free matrices, which AdamW steps directly. Memory: one fp32
    number for each weight of a matrix, on the CPU.
    """
    layers = constrained_modules(model, variant)
    embeddings = (model.get_input_embeddings(), model.get_output_embeddings())
    constrained, free = list[np.ndarray](), list[np.ndarray]()
    for name, module in start.named_modules():
        weight, there = getattr(module, "weight", None), model.get_submodule(name)
        if weight is None or weight.ndim < 2 or any(there.weight is table.weight for table in embeddings):
            continue
        before, now = (each.weight.detach().to("cpu", torch.float32) for each in (module, there))
        (constrained if name in layers else free).append(_relative(before, now))
    return Movement(constrained=_median(constrained), free=_median(free))


def _relative(before: torch.Tensor, now: torch.Tensor) -> np.ndarray:
    """|change| over |start| of every weight that did not start at 0; [their number]."""
    began = before != 0
    return ((now - before).abs()[began] / before.abs()[began]).numpy()


def _median(parts: list[np.ndarray]) -> float | None:
    values = np.concatenate(parts) if parts else np.empty(0)
    return float(np.median(values, overwrite_input=len(parts) > 1)) if values.size else None


FIRST_CHECK_STEP = 10

Check = Callable[[nn.Module], None]


def movement_checks(
    load_start: Callable[[], PreTrainedModel],
    variant: str,
    allowed: AllowedSigns,
    required_movement: float,
    schedule: Schedule,
) -> dict[int, list[Check]]:
    """Step -> checks that the constrained weights leave those of the model that `load_start` reads, on the CPU: in bf16
    (defect D2), or through softplus at a low rate, they do not.

    After 10 steps every constrained matrix must be in fp32 and have weights that moved, unless all of them stay 0. At
    the first step after warm-up and at the last step the median relative movement of all must be `required_movement`
    times that of the free matrices; 0: is not asked. The start is read when a check is due, and not kept in memory, so
    that a continuation asks the same.
    """

    def every_matrix(model: nn.Module) -> None:
        start = load_start()
        for name, signs in allowed.layers.items():
            layer, before = model.get_submodule(name), start.get_submodule(name).weight.detach()
            now = trained_parameter(layer).detach().cpu()
            if now.dtype != torch.float32:
                raise CheckFailed(f"{name} is trained in fp32", str(now.dtype), "torch.float32", _FORMAT)
            if signs.any() and torch.equal(now, trained_value(layer, before)):
                raise CheckFailed(f"{name} has weights that moved since its start", 0, "more than 0", _FORMAT)

    def far_enough(model: nn.Module) -> None:
        require_movement(cast(PreTrainedModel, model), variant, load_start(), required_movement)

    first = min(FIRST_CHECK_STEP, schedule.total_steps)
    checks: dict[int, list[Check]] = {first: [every_matrix]}
    if required_movement:
        after_warmup = min(max(FIRST_CHECK_STEP, schedule.warmup_steps + 1), schedule.total_steps)
        for step in sorted({after_warmup, schedule.total_steps}):
            checks.setdefault(step, []).append(far_enough)
    return checks


def require_movement(model: PreTrainedModel, variant: str, start: PreTrainedModel, required: float) -> None:
    """CheckFailed unless constrained weights moved `required` times as far as the free matrices, and moved at all."""
    movement = measure_movement(model, variant, start)
    constrained, free = movement.constrained or 0.0, movement.free or 0.0
    if not (constrained > 0 and constrained >= required * free):
        raise CheckFailed(
            f"constrained weights move (median of |change| over |start|) {required:g} times as far as the free "
            "matrices, at least",
            f"{constrained:.3g}, where the free matrices moved {free:.3g}",
            f"{required * free:.3g}",
            _ADVICE,
        )


_FORMAT = "Steps smaller than half the spacing of the weights' number format are lost: keep fp32 weights"
_ADVICE = (
    "Through softplus a weight W moves by about W times a step: raise budget.learning_rate; in bf16 steps are lost: "
    "keep fp32 weights"
)
