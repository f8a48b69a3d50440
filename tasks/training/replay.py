"""Makes a failed step again, with its weights, its batch and its draws, and hooks on every module.

The stage's own function builds the model and the data, up to the training, which the saved step replaces. The function
writes to a temporary folder: the run directory stays as it is.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from storage.errors import BadInput
from storage.tensors import read_tensors
from tasks.stage.reopened import Reopened, reopen
from tasks.training.culprits import FILE, FOLDER, Found, find_culprits, read_step, tensors_of
from tasks.training.problem import Problem
from tasks.training.state import untied

EXAMPLES_SHOWN = 20


class _Ready(Exception):
    """The stage's function has reached its training."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def replay(path: Path, own: Path | None = None) -> Iterator[str]:
    """Makes the step again that failed in the run directory `path`; yields lines for a person.

    `own` is the folder of a person's own study, as for `reopen`. BadInput where no step is kept, or where the stage
    never reaches a training.
    """
    folder = path / FOLDER
    if not (folder / FILE).is_file():
        raise BadInput(
            f"{path} keeps no failed step: none failed there, or one of a kind that is not kept (a validation, a try "
            "of a learning rate, a single batch)"
        )
    record, step = read_step(folder)
    problem = _problem(reopen(path, own))
    _load_weights(problem.model, folder / "model.safetensors")
    yield f"step {step.number}, as it failed: {record.tensor}, examples {_some(record.culprits)}"
    changed: list[str] = []
    failed_batch = read_tensors(folder / "batch.safetensors")

    def put_back(number: int, batch: object) -> None:
        """Restores the values of the failed batch, in case the files have changed."""
        for name, tensor in tensors_of(batch).items():
            values = failed_batch.get(name) if number == record.micro_batch else None
            if values is not None and values.shape != tensor.shape:
                raise BadInput(
                    f"{name} has the shape {list(tensor.shape)} now, and had {list(values.shape)} when the step "
                    "failed: the data or their reading changed since. The batch as it was is in "
                    f"{folder / 'batch.safetensors'}"
                )
            if values is not None and not _equal(values, tensor):
                changed.append(name)
                tensor.copy_(values)

    result = find_culprits(problem, step, put_back)
    if changed:
        yield (
            f"the data changed since ({', '.join(sorted(set(changed)))}): the batch has its values of then, while the "
            "search by single example reads those of now"
        )
    if result is None:
        yield "not reproduced: everything is finite here"
        return
    reproduced = (result.tensor, result.examples) == (record.tensor, record.culprits)
    yield (
        f"reproduced: {result.tensor}, examples {_some(result.examples)}"
        if reproduced
        else (f"it fails otherwise here: {result.tensor}, examples {_some(result.examples)}")
    )
    if result.module:
        yield f"it begins in {result.module}"
    yield from _modules(result)
    yield f"weights and batch, as safetensors: {folder}"


def _load_weights(model: nn.Module, file: Path) -> None:
    """Loads the saved weights; BadInput where the model that this source builds has others."""
    weights, expected = read_tensors(file), untied(model.state_dict())
    if names := sorted(weights.keys() ^ expected.keys()):
        raise BadInput(f"{file} was written by another version of the model: {names[0]} is in one of them only")
    if shapes := [name for name, tensor in weights.items() if tensor.shape != expected[name].shape]:
        raise BadInput(f"{file} was written by another version of the model: {shapes[0]} has another shape")
    model.load_state_dict(weights, strict=False)  # tied weights are kept once


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(((a.to(b.device) == b) | (a.to(b.device).isnan() & b.isnan())).all())


def _some(examples: list[int]) -> str:
    listed = ", ".join(map(str, examples[:EXAMPLES_SHOWN]))
    return f"[{listed}]" if len(examples) <= EXAMPLES_SHOWN else f"[{listed}, ...] ({len(examples)})"


def _modules(result: Found) -> Iterator[str]:
    width = max(len(call.module) for call in result.modules)
    yield f"  {'module':<{width}}  largest output   not finite"
    for call in result.modules:
        yield f"  {call.module:<{width}}  {call.largest:>14.6g}   {call.not_finite or '-'}"


def _problem(stage: Reopened) -> Problem:
    """The problem that the stage was about to train."""

    def take(problem: Problem) -> None:
        raise _Ready(problem)

    with stage.elsewhere() as (work, config):
        work.take_over = take
        try:
            stage.stage.function()(work, config, **stage.inputs)
        except _Ready as ready:
            return ready.problem
    raise BadInput(f"{stage.run.path} trains nothing that could be made again")
