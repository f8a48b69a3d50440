"""What began a numerical failure: which examples, which tensor, which module; and the step, kept to be looked at again.

The step is made once more from where it began (the weights are still those, and the generators are put back), with
every module watched. Nothing is guessed: an example is named when its own loss, or the gradient of its own loss within
the same batch, is not finite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from storage import durable
from storage.errors import NumericalFailure
from tasks.stage.run import StageRun
from tasks.training.problem import Problem
from tasks.training.state import load_generator_tensors, untied

FOLDER = "failed-step"
"""Beside the checkpoints of the run that failed."""
MOST_BACKWARDS = 256
"""So often a batch is differentiated in search of the examples whose gradients are not finite."""


@dataclass(frozen=True)
class Watched:
    """What was seen of one call of a module: the largest finite size of its output, and how much was not finite."""

    module: str
    largest: float
    not_finite: int
    input_not_finite: int


@dataclass(frozen=True)
class Step:
    """A step before it is made: its micro-batches as dataset indices [B] each, and torch's generators.

    `weight` is what the sum of its losses is divided by.
    """

    number: int
    epoch: int
    examples: Sequence[np.ndarray]
    weight: float
    generators: dict[str, torch.Tensor]
    autocast: bool


class FailedStep(NumericalFailure):
    """A step of which something is not finite, with what it takes to make it again."""

    def __init__(self, made: Step, examples: Sequence[int], tensor: str) -> None:
        self.made = made
        super().__init__(made.number, examples, tensor)


@dataclass(frozen=True)
class Found:
    """Dataset indices of the culprits, the tensor and the module where it began, and every call of a module in order.

    `together` says that each example alone is finite, and their sum is not. `batch` is the micro-batch.
    """

    examples: list[int]
    tensor: str
    module: str
    together: bool
    modules: list[Watched]
    batch: Any = None


def culprits(problem: Problem, step: Step, change: Callable[[Any], None] = lambda batch: None) -> Found | None:
    """Makes the step again, up to the first micro-batch of which something is not finite; None where all is.

    No weight is changed. `change` may change the tensors of a batch before the model gets it.
    """
    problem.model.train()
    load_generator_tensors(step.generators)
    device = next(problem.model.parameters()).device
    for indices in step.examples:
        batch = problem.batch(indices, step.epoch)
        change(batch)
        with torch.autocast(device.type, torch.bfloat16, enabled=step.autocast), _watched(problem.model) as modules:
            losses = problem.losses(problem.model, batch).float()
        if found := _of_losses(problem.model, losses / step.weight, indices, modules):
            return replace(found, batch=batch)
    return None


def located(run: StageRun, problem: Problem, error: FailedStep) -> NumericalFailure:
    """The failure with its culprits, which are kept with the step in the run directory."""
    problem.optimizer.zero_grad(set_to_none=True)
    found = culprits(problem, error.made)
    _keep(run, problem, error, found)
    if found is None:
        return NumericalFailure(error.step, error.examples, error.tensor)
    batch = sum(map(len, error.made.examples))
    return NumericalFailure(error.step, found.examples, found.tensor, found.module, batch, found.together)


def _keep(run: StageRun, problem: Problem, error: FailedStep, found: Found | None) -> None:
    made = error.made
    described = {
        "step": made.number,
        "epoch": made.epoch,
        "examples": [indices.tolist() for indices in made.examples],
        "weight": made.weight,
        "autocast": made.autocast,
        "tensor": found.tensor if found else error.tensor,
        "culprits": found.examples if found else error.examples,
        "module": found.module if found else "",
    }
    run.lock.check()
    with durable.new_directory(run.directory / FOLDER) as folder:
        save_file(_on_cpu(untied(problem.model.state_dict())), folder / "model.safetensors")
        save_file(_on_cpu(made.generators), folder / "generators.safetensors")
        save_file(_on_cpu(tensors_of(found.batch) if found else {}), folder / "batch.safetensors")
        durable.write_json(folder / "failure.json", described)


def kept(folder: Path) -> tuple[dict[str, Any], Step]:
    """What `failure.json` says, and the step."""
    described = durable.read_json(folder / "failure.json")
    return described, Step(
        number=described["step"],
        epoch=described["epoch"],
        examples=[np.array(indices, dtype=np.int64) for indices in described["examples"]],
        weight=described["weight"],
        generators=load_file(folder / "generators.safetensors"),
        autocast=described["autocast"],
    )


def tensors_of(batch: Any, name: str = "batch") -> dict[str, torch.Tensor]:
    """The tensors of a batch, of whatever form: a tensor, or dictionaries, sequences, dataclasses of them."""
    if torch.is_tensor(batch):
        return {name: batch}
    if is_dataclass(batch) and not isinstance(batch, type):
        batch = {one.name: getattr(batch, one.name) for one in fields(batch)}
    parts = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, tuple | list) else ()
    return {key: tensor for part, inner in parts for key, tensor in tensors_of(inner, f"{name}.{part}").items()}


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _of_losses(model: nn.Module, losses: torch.Tensor, indices: np.ndarray, modules: list[Watched]) -> Found | None:
    """The culprits of one micro-batch, of whose losses the sum is made small; None where all is finite."""
    wrong = (~losses.detach().isfinite()).cpu().numpy()
    if wrong.any():
        first = next((seen for seen in modules if seen.not_finite), None)
        began = "" if first is None else f"the input of {first.module}" if first.input_not_finite else first.module
        return Found(indices[wrong].tolist(), "the loss", began, False, modules)
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad]

    def gradients(rows: Sequence[int]) -> list[torch.Tensor | None]:
        summed = losses[list(rows)].sum()
        return list(torch.autograd.grad(summed, [one for _, one in named], retain_graph=True, allow_unused=True))

    whole = gradients(range(len(indices)))
    spoilt = [name for (name, _), gradient in zip(named, whole, strict=True) if not _finite(gradient)]
    there = {name: gradient for (name, _), gradient in zip(named, whole, strict=True) if gradient is not None}
    if not spoilt and bool(nn.utils.get_total_norm(list(there.values())).isfinite()):
        return None
    # backwards the last tensor is made first; of a norm too large to be a number, the largest has most
    culprit = spoilt[-1] if spoilt else max(there, key=lambda name: float(there[name].abs().max()))
    alone = _narrowed(gradients, len(indices)) if spoilt else []
    tensor = f"the gradient of {culprit}" if spoilt else "the norm of all gradients"
    examples = indices[alone].tolist() if alone else indices.tolist()
    return Found(examples, tensor, culprit.rpartition(".")[0] or culprit, not alone, modules)


def _finite(gradient: torch.Tensor | None) -> bool:
    return gradient is None or bool(gradient.isfinite().all())


def _narrowed(gradients: Callable[[Sequence[int]], list[torch.Tensor | None]], count: int) -> list[int]:
    """The rows whose own gradient is not finite, by halving; those that were found within MOST_BACKWARDS."""
    waiting, found, tried = [list(range(count))], [], 0
    while waiting and tried < MOST_BACKWARDS:
        rows = waiting.pop(0)
        tried += 1
        if all(map(_finite, gradients(rows))):
            continue
        if len(rows) == 1:
            found += rows
        else:
            waiting += [rows[: len(rows) // 2], rows[len(rows) // 2 :]]
    return sorted(found)


@contextmanager
def _watched(model: nn.Module) -> Iterator[list[Watched]]:
    """Every call of a module below the model, in the order in which they end."""
    seen: list[Watched] = []

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def see(_: nn.Module, given: Any, output: Any) -> None:
            values = [one.detach() for one in tensors_of(output).values() if one.is_floating_point()]
            largest = max((float(one[one.isfinite()].abs().max()) for one in values if one.isfinite().any()), default=0)
            seen.append(Watched(name, largest, _not_finite(output), _not_finite(given)))

        return see

    handles = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _not_finite(values: Any) -> int:
    floats = [one.detach() for one in tensors_of(values).values() if one.is_floating_point()]
    return sum(int((~one.isfinite()).sum()) for one in floats)
