"""What flows through the weights of a model: inputs and output gradients of each example, by hooks.

The gradient of one example's loss by a weight is the sum over positions t of the product of two vectors: for a linear
layer g[t] a[t]^T, output gradient and input; for a convolution the same over patches; for an embedding e[t] g[t]^T with
the unit vector of the token. Nothing is stored by the model itself: its parameters are frozen meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from storage.errors import BadInput, CheckFailed
from tasks.influence.plan import ModulePlan, with_bias
from tasks.influence.task import Task, finite_losses


@dataclass(frozen=True)
class Use:
    """One call of a module: `left` and `right` span its weight's gradient [B, rows, columns].

    Linear and convolution: left are output gradients [B, T, rows], right inputs [B, T, columns] (1 for the bias
    appended). Embedding: left are tokens [B, T] (integers below `rows`), right output gradients [B, T, columns].
    `real` [B, T] tells padding apart; None: all is real.
    """

    module: str
    left: torch.Tensor
    right: torch.Tensor
    real: torch.Tensor | None
    rows: int

    def gradient(self) -> torch.Tensor:
        """The gradient of each example, [B, rows, columns]."""
        if self.left.is_floating_point():
            return self.left.transpose(1, 2) @ self.right
        examples, _, columns = self.right.shape
        found = self.right.new_zeros(examples * self.rows, columns)
        place = self.left + self.rows * torch.arange(examples, device=self.left.device)[:, None]
        return found.index_add_(0, place.flatten(), self.right.flatten(0, 1)).view(examples, self.rows, columns)

    def add_moments(self, sums: dict[str, torch.Tensor], row_block: int, column_block: int) -> int:
        """Adds the sums of x x^T over real positions, as `rows.<block>` and `columns.<block>`; returns how many."""
        real = self.real
        if real is not None and real.shape != self.right.shape[:2]:
            raise BadInput(
                f"{self.module} has inputs of {tuple(self.right.shape[:2])} examples and positions, and the task's "
                f"`positions` gives {tuple(real.shape)}: let it answer by the module's name, None where all are real"
            )
        for side, values, block in (("rows", self.left, row_block), ("columns", self.right, column_block)):
            if block > 1:
                flat = (values if real is None else values * real[..., None]).flatten(0, 1)
                for number, part in enumerate(flat.split(block, 1)):
                    key = f"{side}.{number}"
                    sums[key] = sums.get(key, 0) + part.T @ part
        return self.right.shape[:2].numel() if real is None else int(real.sum())


def summed(uses: Sequence[Use]) -> torch.Tensor:
    """The gradient of each example by a weight, over all of its uses, [B, rows, columns]."""
    total = uses[0].gradient()
    for use in uses[1:]:
        total = total + use.gradient()
    return total


def parts_of(uses: Sequence[Use], elements: int, memory_bytes: int) -> Iterator[list[Use]]:
    """The uses for as many examples at a time as have gradients of `elements` within the bound; at least one."""
    examples, size = len(uses[0].right), max(1, memory_bytes // (8 * elements))
    for first in range(0, examples, size):
        some = slice(first, first + size)
        yield [replace(use, left=use.left[some], right=use.right[some], real=None) for use in uses]


def captured(
    task: Task, plan: Sequence[ModulePlan], indices: np.ndarray, generator: torch.Generator | None = None
) -> dict[str, list[Use]]:
    """The uses of each planned weight by the examples `indices`, in evaluation mode; one backward pass."""
    found: dict[str, list[Use]] = {one.name: [] for one in plan}
    batch = task.batch(indices)
    with _wanting(task.model), _hooked(task, plan, batch, len(indices), found):
        losses = finite_losses(task, batch, indices, generator)
        if losses.requires_grad:
            losses.sum().backward()
    return found


def gradient_alone(task: Task, plan: Sequence[ModulePlan], index: np.ndarray) -> dict[str, torch.Tensor]:
    """The gradients [rows, columns without a bias] of one example in a batch of its own, by autograd."""
    modules = dict(task.model.named_modules())
    weights = [modules[one.name].weight for one in plan]
    with _wanting(task.model, weights):
        loss = finite_losses(task, task.batch(index), index, None).sum()
        found = torch.autograd.grad(loss, weights, allow_unused=True)
    pairs = zip(plan, found, weights, strict=True)
    return {
        one.name: (torch.zeros_like(at) if gradient is None else gradient).flatten(1) for one, gradient, at in pairs
    }


@contextmanager
def _wanting(model: nn.Module, weights: Sequence[torch.Tensor] = ()) -> Iterator[None]:
    """Only these weights take gradients, and dropout is off; all as before at the end."""
    training = [module for module in model.modules() if module.training]
    before = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval().requires_grad_(False)
        for weight in weights:
            weight.requires_grad_(True)
        with torch.enable_grad():
            yield
    finally:
        for parameter, wanted in before:
            parameter.requires_grad_(wanted)
        for module in training:
            module.training = True


@contextmanager
def _hooked(
    task: Task, plan: Sequence[ModulePlan], batch: object, examples: int, found: dict[str, list[Use]]
) -> Iterator[None]:
    def hook(one: ModulePlan, name: str):
        def forward(module: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> torch.Tensor:
            if not output.requires_grad:  # the first of the network: the gradient has to begin somewhere
                output = output.detach().requires_grad_().clone()
            given, real = inputs[0].detach(), task.positions(batch, name) if task.positions else None

            def backward(gradient: torch.Tensor) -> None:
                if len(given) != examples:
                    raise CheckFailed(
                        f"the input of {name}",
                        f"{len(given)} rows",
                        f"{examples}, one an example",
                        "Exclude the module",
                    )
                bias = with_bias(module, tied=len(one.modules) > 1)
                left, right = _sides(module, given, gradient.detach(), bias)
                found[one.name].append(Use(name, left, right, real, one.rows))

            output.register_hook(backward)
            return output

        return forward

    modules = dict(task.model.named_modules())
    handles = [modules[name].register_forward_hook(hook(one, name)) for one in plan for name in one.modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _sides(
    module: nn.Module, given: torch.Tensor, gradient: torch.Tensor, bias: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(module, nn.Embedding):
        tokens, gradient = given.reshape(len(given), -1), gradient.reshape(len(given), -1, gradient.shape[-1])
        if module.padding_idx is not None:
            gradient = gradient * (tokens != module.padding_idx)[..., None]
        return tokens, gradient
    if isinstance(module, nn.Conv2d):
        mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
        padded = functional.pad(given, module._reversed_padding_repeated_twice, mode)
        given = functional.unfold(padded, module.kernel_size, module.dilation, 0, module.stride).transpose(1, 2)
        gradient = gradient.flatten(2).transpose(1, 2)
    given, gradient = (
        given.reshape(len(given), -1, given.shape[-1]),
        gradient.reshape(len(given), -1, gradient.shape[-1]),
    )
    return gradient, functional.pad(given, (0, 1), value=1.0) if bias else given
