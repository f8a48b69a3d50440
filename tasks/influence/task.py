"""What influence needs to know of a model and its examples; and what flows through its weights: an example's gradient
is a sum over positions of products of two vectors, output gradient and input of a linear layer, a token's unit vector
and the output gradient for an embedding."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from storage.errors import BadInput, require, require_equal, require_limit
from tasks.influence.plan import Plan

Told = Callable[[int, int, str], None]
"""Gets how many are done, of how many, and of what; it may raise to stop, and nothing durable is lost."""


@dataclass(frozen=True)
class Task:
    """A model with `size` examples: a classifier, a causal language model, an encoder-decoder.

    `batch(indices)` gives the examples at an integer array [B], on the model's device; `losses(model, batch,
    generator)` their losses [B], sums over tokens, independent of one another; with a generator, of labels drawn from
    the model's own prediction, as the Fisher information asks. `positions(batch, module)` says which positions of a
    module's input [B, T, ...] are real, [B, T] bool, the rest being padding that does not count; None: all are.
    """

    model: nn.Module
    size: int
    batch: Callable[[np.ndarray], Any]
    losses: Callable[[nn.Module, Any, torch.Generator | None], torch.Tensor]
    positions: Callable[[Any, str], torch.Tensor | None] = lambda *_: None


def token_losses(logits: torch.Tensor, labels: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
    """The summed cross-entropy (nats) of each example, [B]; positions with the label -100 have none. `logits` are [B,
    classes] or [B, T, vocabulary], `labels` of the same positions; with a generator they are drawn from the logits."""
    flat, target = logits.flatten(0, -2), labels.flatten()
    if generator is not None:
        drawn = torch.multinomial(flat.detach().softmax(-1), 1, generator=generator)[:, 0]
        target = torch.where(target == -100, target, drawn)
    return functional.cross_entropy(flat, target, reduction="none").view(len(labels), -1).sum(1)


Use = tuple[str, torch.Tensor, torch.Tensor]
"""One call of the named module on a batch: left [B, T, rows] and right [B, T, columns], both 0 at padding."""


def gradients(uses: Sequence[Use], memory_bytes: int) -> Iterator[torch.Tensor]:
    """The gradients [B, rows, columns] of examples by a weight over all of its uses, as many at a time as fit."""
    size = max(1, memory_bytes // (8 * uses[0][1].shape[-1] * uses[0][2].shape[-1]))
    for some in (slice(first, first + size) for first in range(0, len(uses[0][1]), size)):
        yield sum(left[some].transpose(1, 2) @ right[some] for _, left, right in uses)


def batches(indices: np.ndarray, size: int) -> list[np.ndarray]:
    """The indices, `size` at a time."""
    return np.split(indices, range(size, len(indices), size))


def captured(task: Task, plan: Plan, indices: np.ndarray, generator: torch.Generator | None = None) -> list[list[Use]]:
    """The uses of each planned weight by the examples `indices`: one backward pass, without dropout. CheckFailed where
    a loss is not finite, or a module sees other rows than these examples."""
    batch, modules, calls = task.batch(indices), dict(task.model.named_modules()), []

    def watch(at: int, name: str) -> torch.utils.hooks.RemovableHandle:
        def forward(_: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            calls.append((at, name, inputs[0].detach(), output))
            return output.clone()  # so that nobody changes what the gradient is asked for

        return modules[name].register_forward_hook(forward)

    with _evaluated(task.model):
        with ExitStack() as hooks:
            for at, item in enumerate(plan):
                for name in item.modules:
                    hooks.enter_context(watch(at, name))
            loss = _losses(task, indices, batch, generator).sum()
        calls = [call for call in calls if call[-1].requires_grad]
        found = torch.autograd.grad(loss, [output for *_, output in calls], allow_unused=True)
    uses: list[list[Use]] = [[] for _ in plan]
    for (at, name, given, _), gradient in zip(calls, found, strict=True):
        if gradient is not None:
            require_equal(f"rows of {name}", len(given), len(indices), "One an example is needed: exclude the module")
            sides, real = _sides(modules[name], given, gradient, plan[at].bias), task.positions(batch, name)
            if real is not None:
                advice = "The task's `positions` must answer by the module's name"
                require_equal(f"positions of {name}", tuple(real.shape), tuple(sides[0].shape[:2]), advice)
            left, right = sides if real is None else (side * real[..., None] for side in sides)
            uses[at].append((name, left, right))
    for item, each in zip(plan, uses, strict=True):
        advice = "No gradient reaches it: exclude the module"
        require(each, f"examples counted in {item.name}", 0, len(indices), advice)
    return uses


def _sides(module: nn.Module, inputs: torch.Tensor, gradient: torch.Tensor, bias: bool) -> list[torch.Tensor]:
    exact = torch.promote_types(gradient.dtype, torch.float32)
    if isinstance(module, nn.Embedding):
        units = gradient.new_zeros(*inputs.shape, module.num_embeddings).scatter_(-1, inputs.long()[..., None], 1)
        units[..., [] if module.padding_idx is None else module.padding_idx] = 0
        inputs, gradient = gradient, units
    inputs = functional.pad(inputs, (0, 1), value=1.0) if bias else inputs
    return [side.reshape(len(side), -1, side.shape[-1]).to(exact) for side in (gradient, inputs)]


def _losses(task: Task, indices: np.ndarray, batch: Any, generator: torch.Generator | None = None) -> torch.Tensor:
    """The losses [B]; CheckFailed names the examples whose loss is not finite: they would spoil every factor."""
    losses = task.losses(task.model, batch, generator)
    require_equal("shape of the losses of a batch", tuple(losses.shape), (len(indices),), "One an example is needed")
    wrong = ", ".join(str(index) for index, fine in zip(indices, losses.isfinite().tolist(), strict=True) if not fine)
    require(not wrong, f"loss of example {wrong[:100]}", "not finite", "finite", "Mend it or leave it out")
    return losses


@contextmanager
def _evaluated(model: nn.Module) -> Iterator[None]:
    """Without dropout, and with gradients for every weight; as before at the end."""
    training = [module for module in model.modules() if module.training]
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    try:
        model.eval().requires_grad_(True)
        with torch.enable_grad():
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module in training:
            module.training = True


def require_drawn(task: Task, indices: np.ndarray) -> None:
    """BadInput where the losses leave their generator alone: the labels would be the true ones, and called sampled."""
    device = next(task.model.parameters()).device
    before = (drawn := torch.Generator(device).manual_seed(0)).get_state()
    with _evaluated(task.model):
        _losses(task, indices, task.batch(indices), drawn)
    if torch.equal(before, drawn.get_state()):
        raise BadInput(
            "labels='sampled', and the task's losses draw no label with the generator that they are given: draw them "
            "with it, as token_losses does, or say labels='true'"
        )


def require_faithful(task: Task, plan: Plan, indices: np.ndarray, tolerance: float = 1e-3) -> None:
    """CheckFailed unless each example's gradient, taken by hooks in one batch, is autograd's of it alone: else padding
    is read, or examples mix, or a weight is used past its module, or the rows of a batch are no examples."""
    together, modules = captured(task, plan, indices), dict(task.model.named_modules())
    for row, index in enumerate(indices):
        with _evaluated(task.model):
            loss = _losses(task, indices[[row]], task.batch(indices[[row]])).sum()
            alone = torch.autograd.grad(loss, [modules[item.name].weight for item in plan], materialize_grads=True)
        least = max(1e-3 * max(float(gradient.norm()) for gradient in alone), 1e-30)
        for item, uses, gradient in zip(plan, together, alone, strict=True):
            ours = sum(left[row].T @ right[row] for _, left, right in uses)[:, : gradient[0].numel()]
            difference = float((ours - gradient.flatten(1)).norm()) / max(float(gradient.norm()), least)
            what = f"gradient of example {index} by {item.name} in a batch, relative difference from that of it alone"
            advice = (
                "Padding is read, or examples mix, or the weight is used past its module (then exclude it), or half "
                "precision rounds too much (then take model.float())"
            )
            require_limit(what, difference, tolerance, advice=advice)
