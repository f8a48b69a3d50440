"""The culprits of a numerical failure: examples, tensor and module; and the failed step, which is kept.

The step is made again from its start (the weights are unchanged, and the generators are restored), with hooks on every
module. Nothing is guessed: an example is named when its loss is not finite, or the gradient of its loss in a batch of
that example alone. (Within a batch a gradient cannot be split by example: where the derivative of one example is
infinite, the zeros of the others become NaN there.)
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
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
from tasks.stage.generators import load_generator_tensors
from tasks.stage.result import Result
from tasks.stage.run import StageRun
from tasks.training.problem import Problem
from tasks.training.state import untied

FOLDER, FILE = "failed-step", "failure.json"
"""The folder beside the checkpoints of the run that failed, and its record."""
MOST_BACKWARDS = 2048
"""The most backward passes in search of the examples whose gradients are not finite."""


@dataclass(frozen=True)
class Watched:
    """One call of a module: the number of values of its output, and of its input, that are not finite."""

    module: str
    not_finite: int
    input_not_finite: int


@dataclass(frozen=True)
class Step:
    """A step before it is made: its micro-batches as dataset indices [B] each, and torch's generators.

    The sum of its losses is divided by `weight`.
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
    """A step with a value that is not finite, and the data to make it again."""

    def __init__(self, made: Step, examples: Sequence[int], tensor: str) -> None:
        self.made = made
        super().__init__(made.number, examples, tensor)


@dataclass(frozen=True)
class Found:
    """Dataset indices of the culprits, the tensor and the module where it began, and every call of a module in order.

    `together` says that each example alone is finite, but their sum is not; `complete` is False where the search was
    cut off, so that `examples` are the whole micro-batch. `batch` is the micro-batch, the `number`-th of the step.
    """

    examples: list[int]
    tensor: str
    module: str
    together: bool
    modules: list[Watched]
    complete: bool = True
    batch: object = None
    number: int = 0


def find_culprits(problem: Problem, step: Step) -> Found | None:
    """Makes the step again, up to the first micro-batch with a value that is not finite; None where all are.

    No weight is changed.
    """
    problem.model.train()
    load_generator_tensors(step.generators)
    for number, indices in enumerate(step.examples):
        batch = problem.batch(indices, step.epoch)
        with _watch_calls(problem.model) as modules:
            losses = _losses(problem, batch, step)
        if result := _find_in_batch(problem, losses, indices, step, modules):
            return replace(result, batch=batch, number=number)
    return None


def locate(run: StageRun, problem: Problem, error: FailedStep) -> NumericalFailure:
    """Finds the culprits of a failure, and saves them with the step in the run directory.

    An error of the search or of the save is only logged: it must not hide the failure.
    """
    problem.optimizer.zero_grad(set_to_none=True)
    weights = _on_cpu(untied(problem.model.state_dict()))  # before BatchNorm counts the search too
    result = None
    try:
        result = find_culprits(problem, error.made)
    except (RuntimeError, OSError, ValueError, BadInput) as hindrance:
        run.log.warning("the failed step could not be looked at: %s: %s", type(hindrance).__name__, hindrance)
    try:
        _save_step(run, weights, error, result)
    except OSError as hindrance:
        run.log.warning("the failed step could not be kept: %s", hindrance)
    if result is None:
        return NumericalFailure(error.step, error.examples, error.tensor)
    batch = sum(map(len, error.made.examples)) if result.complete else 0
    return NumericalFailure(error.step, result.examples, result.tensor, result.module, batch, result.together)


def _save_step(run: StageRun, weights: dict[str, torch.Tensor], error: FailedStep, result: Found | None) -> None:
    step = error.made
    record = Kept(
        step=step.number,
        epoch=step.epoch,
        examples=[indices.tolist() for indices in step.examples],
        micro_batch=result.number if result else 0,
        weight=step.weight,
        autocast=step.autocast,
        tensor=result.tensor if result else error.tensor,
        culprits=result.examples if result else error.examples,
        module=result.module if result else "",
    )
    run.lock.check()
    with durable.new_directory(run.directory / FOLDER) as folder:
        save_file(weights, folder / "model.safetensors")
        save_file(_on_cpu(step.generators), folder / "generators.safetensors")
        save_file(_on_cpu(tensors_of(result.batch) if result else {}), folder / "batch.safetensors")
        durable.write_json(folder / FILE, record.as_json())


def read_step(folder: Path) -> tuple[Kept, Step]:
    """Reads what `_save_step` wrote; BadInput where another version wrote it."""
    try:
        record = Kept.model_validate(durable.read_json(folder / FILE))
    except ValidationError:
        raise BadInput(
            f"{folder / FILE} was written by another version of Ratchet, this one does not understand it: use the one "
            f"that wrote it (attempts/ in {folder.parent} names its commit)"
        ) from None
    return record, Step(
        number=record.step,
        epoch=record.epoch,
        examples=[np.array(indices, dtype=np.int64) for indices in record.examples],
        weight=record.weight,
        generators=read_tensors(folder / "generators.safetensors"),
        autocast=record.autocast,
    )


def tensors_of(batch: object, name: str = "batch") -> dict[str, torch.Tensor]:
    """The tensors of a batch of any form: a tensor, or dictionaries, sequences, dataclasses of them."""
    if torch.is_tensor(batch):
        return {name: batch}
    if is_dataclass(batch) and not isinstance(batch, type):
        batch = {field.name: getattr(batch, field.name) for field in fields(batch)}
    parts = batch.items() if isinstance(batch, Mapping) else enumerate(batch) if isinstance(batch, tuple | list) else ()
    return {key: tensor for part, inner in parts for key, tensor in tensors_of(inner, f"{name}.{part}").items()}


def _on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


Gradients = dict[str, torch.Tensor]


def _find_in_batch(
    problem: Problem, losses: torch.Tensor, indices: np.ndarray, step: Step, modules: list[Watched]
) -> Found | None:
    """The culprits of one micro-batch; None where all is finite."""
    wrong = (~losses.detach().isfinite()).cpu().numpy()
    if wrong.any():
        call = next((row for row in modules if row.not_finite), None)
        origin = "" if call is None else f"the input of {call.module}" if call.input_not_finite else call.module
        return Found(indices[wrong].tolist(), "the loss", origin, False, modules)
    gradients = _gradients(problem.model, losses)
    if _sound(gradients):
        return None
    spoilt = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    name = spoilt[-1]  # the first in the backward pass
    tensor, where = f"the gradient of {name}", name.rpartition(".")[0] or name
    alone = _bisect(problem, indices, step)
    together = alone == []
    return Found(alone or indices.tolist(), tensor, where, together, modules, complete=alone is not None)


def _sound(gradients: Gradients) -> bool:
    return all(bool(gradient.isfinite().all()) for gradient in gradients.values())


def _losses(problem: Problem, batch: Any, step: Step) -> torch.Tensor:
    """The batch's contribution to the loss of the step, by example [B]."""
    device = next(problem.model.parameters()).device
    with torch.autocast(device.type, torch.bfloat16, enabled=step.autocast):
        return problem.losses(problem.model, batch).float() / step.weight


def _gradients(model: nn.Module, losses: torch.Tensor) -> Gradients:
    """The gradients of the sum of the losses, by parameter name."""
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    gradients = torch.autograd.grad(losses.sum(), list(parameters.values()), allow_unused=True)
    return {name: gradient for name, gradient in zip(parameters, gradients, strict=True) if gradient is not None}


def _bisect(problem: Problem, indices: np.ndarray, step: Step) -> list[int] | None:
    """Bisects for the examples whose own gradients are not finite; None where MOST_BACKWARDS do not suffice."""
    parts, examples, backwards = [indices], [], 0
    while parts and backwards < MOST_BACKWARDS:
        part = parts.pop(0)
        backwards += 1
        load_generator_tensors(step.generators)
        losses = _losses(problem, problem.batch(part, step.epoch), step)
        if _sound(_gradients(problem.model, losses)):
            continue
        if len(part) == 1:
            examples += part.tolist()
        else:
            parts += [part[: len(part) // 2], part[len(part) // 2 :]]
    return sorted(examples) if not parts else None


@contextmanager
def _watch_calls(model: nn.Module) -> Iterator[list[Watched]]:
    """Collects every call of a module below the model, in the order in which they end."""
    calls: list[Watched] = []

    def watch(name: str) -> Callable[[nn.Module, object, object], None]:
        def append(_: nn.Module, input_: object, output: object) -> None:
            calls.append(Watched(name, _not_finite(output), _not_finite(input_)))

        return append

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(watch(name)))
        yield calls


def _not_finite(values: object) -> int:
    floats = (tensor.detach() for tensor in tensors_of(values).values() if tensor.is_floating_point())
    return sum(int((~tensor.isfinite()).sum()) for tensor in floats)
