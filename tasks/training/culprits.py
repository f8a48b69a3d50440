"""What began a numerical failure: which examples, which tensor, which module; and the step, kept to be looked at again.

The step is made once more from where it began (the weights are still those, and the generators are put back), with
every module watched. Nothing is guessed: an example is named when its loss is not finite, or the gradient of its loss
where the batch is that example alone. (Within the batch a gradient cannot be taken apart: where the derivative of one
example is infinite, the zeros that others pass there become numbers that are none.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError
from safetensors.torch import save_file
from torch import nn

from storage import durable
from storage.errors import BadInput, NumericalFailure
from storage.tensors import read_tensors
from tasks.stage.result import Result
from tasks.stage.run import StageRun
from tasks.training.problem import Problem
from tasks.training.state import load_generator_tensors, untied

FOLDER, FILE = "failed-step", "failure.json"
"""Beside the checkpoints of the run that failed."""
MOST_BACKWARDS = 2048
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


class Kept(Result):
    """failure.json: the step as it failed, with the fields of Step, Found and NumericalFailure."""

    step: int
    epoch: int
    examples: list[list[int]]
    micro_batch: int
    weight: float
    autocast: bool
    tensor: str
    culprits: list[int]
    module: str


class FailedStep(NumericalFailure):
    """A step of which something is not finite, with what it takes to make it again."""

    def __init__(self, made: Step, examples: Sequence[int], tensor: str) -> None:
        self.made = made
        super().__init__(made.number, examples, tensor)


@dataclass(frozen=True)
class Found:
    """Dataset indices of the culprits, the tensor and the module where it began, and every call of a module in order.

    `together` says that each example alone is finite, and their sum is not; not `complete`, that there were too many
    to find out, so that `examples` are the whole micro-batch. `batch` is the micro-batch, the `number`-th of the step.
    """

    examples: list[int]
    tensor: str
    module: str
    together: bool
    modules: list[Watched]
    complete: bool = True
    batch: Any = None
    number: int = 0


def culprits(
    problem: Problem, step: Step, change: Callable[[int, Any], None] = lambda number, batch: None
) -> Found | None:
    """Makes the step again, up to the first micro-batch of which something is not finite; None where all is.

    No weight is changed. `change(number, batch)` may change the tensors of a micro-batch before the model gets it.
    """
    problem.model.train()
    load_generator_tensors(step.generators)
    for number, indices in enumerate(step.examples):
        batch = problem.batch(indices, step.epoch)
        change(number, batch)
        with _watched(problem.model) as modules:
            losses = _losses(problem, batch, step)
        if found := _of_losses(problem, losses, indices, step, modules):
            return replace(found, batch=batch, number=number)
    return None


def located(run: StageRun, problem: Problem, error: FailedStep) -> NumericalFailure:
    """The failure with its culprits, which are kept with the step in the run directory.

    What hinders the search or the keeping is logged: it must not hide the failure.
    """
    problem.optimizer.zero_grad(set_to_none=True)
    weights = _on_cpu(untied(problem.model.state_dict()))  # before BatchNorm counts the search too
    found = None
    try:
        found = culprits(problem, error.made)
    except (RuntimeError, OSError, ValueError, BadInput) as second:
        run.log.warning("the failed step could not be looked at: %s: %s", type(second).__name__, second)
    try:
        _keep(run, weights, error, found)
    except OSError as second:
        run.log.warning("the failed step could not be kept: %s", second)
    if found is None:
        return NumericalFailure(error.step, error.examples, error.tensor)
    batch = sum(map(len, error.made.examples)) if found.complete else 0
    return NumericalFailure(error.step, found.examples, found.tensor, found.module, batch, found.together)


def _keep(run: StageRun, weights: dict[str, torch.Tensor], error: FailedStep, found: Found | None) -> None:
    made = error.made
    described = Kept(
        step=made.number,
        epoch=made.epoch,
        examples=[indices.tolist() for indices in made.examples],
        micro_batch=found.number if found else 0,
        weight=made.weight,
        autocast=made.autocast,
        tensor=found.tensor if found else error.tensor,
        culprits=found.examples if found else error.examples,
        module=found.module if found else "",
    )
    run.lock.check()
    with durable.new_directory(run.directory / FOLDER) as folder:
        save_file(weights, folder / "model.safetensors")
        save_file(_on_cpu(made.generators), folder / "generators.safetensors")
        save_file(_on_cpu(tensors_of(found.batch) if found else {}), folder / "batch.safetensors")
        durable.write_json(folder / FILE, described.as_json())


def kept(folder: Path) -> tuple[Kept, Step]:
    """What `_keep` wrote. BadInput for what another version wrote."""
    try:
        described = Kept.model_validate(durable.read_json(folder / FILE))
    except ValidationError:
        raise BadInput(
            f"{folder / FILE} was written by another version of Ratchet, this one does not understand it: use the one "
            f"that wrote it (attempts/ in {folder.parent} names its commit)"
        ) from None
    return described, Step(
        number=described.step,
        epoch=described.epoch,
        examples=[np.array(indices, dtype=np.int64) for indices in described.examples],
        weight=described.weight,
        generators=read_tensors(folder / "generators.safetensors"),
        autocast=described.autocast,
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


Gradients = dict[str, torch.Tensor]


def _of_losses(
    problem: Problem, losses: torch.Tensor, indices: np.ndarray, step: Step, modules: list[Watched]
) -> Found | None:
    """The culprits of one micro-batch, of whose losses the sum is made small; None where all is finite."""
    wrong = (~losses.detach().isfinite()).cpu().numpy()
    if wrong.any():
        first = next((seen for seen in modules if seen.not_finite), None)
        began = "" if first is None else f"the input of {first.module}" if first.input_not_finite else first.module
        return Found(indices[wrong].tolist(), "the loss", began, False, modules)
    whole = _gradients(problem.model, losses)
    if _sound(whole):
        return None
    spoilt = [name for name, gradient in whole.items() if not gradient.isfinite().all()]
    tensor, where = f"the gradient of {spoilt[-1]}", spoilt[-1].rpartition(".")[0] or spoilt[-1]  # the first made
    alone = _narrowed(problem, indices, step)
    together = alone == []
    return Found(alone or indices.tolist(), tensor, where, together, modules, complete=alone is not None)


def _sound(gradients: Gradients) -> bool:
    return all(bool(gradient.isfinite().all()) for gradient in gradients.values())


def _losses(problem: Problem, batch: Any, step: Step) -> torch.Tensor:
    """What the batch adds to the loss of the step, by example."""
    device = next(problem.model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=step.autocast):
        return problem.losses(problem.model, batch).float() / step.weight


def _gradients(model: nn.Module, losses: torch.Tensor) -> Gradients:
    """Of the sum of the losses, by the name of each parameter that has one."""
    named = {name: one for name, one in model.named_parameters() if one.requires_grad}
    found = torch.autograd.grad(losses.sum(), list(named.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(named, found, strict=True) if gradient is not None}


def _narrowed(problem: Problem, indices: np.ndarray, step: Step) -> list[int] | None:
    """The examples whose own gradients are not finite, by halving; None where MOST_BACKWARDS do not find them all."""
    waiting, found, tried = [indices], [], 0
    while waiting and tried < MOST_BACKWARDS:
        some = waiting.pop(0)
        tried += 1
        load_generator_tensors(step.generators)
        losses = _losses(problem, problem.batch(some, step.epoch), step)
        if _sound(_gradients(problem.model, losses)):
            continue
        if len(some) == 1:
            found += some.tolist()
        else:
            waiting += [some[: len(some) // 2], some[len(some) // 2 :]]
    return sorted(found) if not waiting else None


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
