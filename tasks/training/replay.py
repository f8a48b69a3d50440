"""A failed step made again: with its weights, its batch and its draws, and every module watched.

The stage's own function builds the model and the data, up to the training; there the kept step takes its place. What
the function writes meanwhile goes to a temporary folder: the run directory stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from storage.errors import BadInput
from storage.tensors import read_tensors
from tasks.stage import numerics
from tasks.stage.reopened import Reopened, reopen
from tasks.training.culprits import FILE, FOLDER, Found, culprits, kept, tensors_of
from tasks.training.problem import Problem
from tasks.training.state import untied

EXAMPLES_SHOWN = 20


class _Ready(Exception):
    """The stage's function has come to its training."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem


def replay(path: Path, own: Path | None = None) -> Iterator[str]:
    """Makes the step again that failed in the run directory `path`; gives lines for a person.

    `own` is the folder of a study of one's own, as for `reopen`.

    BadInput where no step is kept, or where the stage never comes to a training.
    """
    folder = path / FOLDER
    if not (folder / FILE).is_file():
        raise BadInput(
            f"{path} keeps no failed step: none failed there, or one of a kind that is not kept (a validation, a try "
            "of a learning rate, a single batch)"
        )
    described, step = kept(folder)
    problem = _problem(reopen(path, own))
    _load_weights(problem.model, folder / "model.safetensors")
    yield f"step {step.number}, as it failed: {described.tensor}, examples {_some(described.culprits)}"
    changed: list[str] = []
    stored = read_tensors(folder / "batch.safetensors")

    def put_back(number: int, batch: Any) -> None:
        """Gives the batch that failed the values that it had, whatever the files say by now."""
        for name, tensor in tensors_of(batch).items():
            was = stored.get(name) if number == described.micro_batch else None
            if was is not None and was.shape != tensor.shape:
                raise BadInput(
                    f"{name} has the shape {list(tensor.shape)} now, and had {list(was.shape)} when the step failed: "
                    f"the data or their reading changed since. The batch as it was is in {folder / 'batch.safetensors'}"
                )
            if was is not None and not _equal(was, tensor):
                changed.append(name)
                tensor.copy_(was)

    found = culprits(problem, step, put_back)
    if changed:
        yield (
            f"the data changed since ({', '.join(sorted(set(changed)))}): the values that it had then were taken for "
            "the batch, while single examples are searched in those of now"
        )
    if found is None:
        yield "not reproduced: everything is finite here"
        return
    same = (found.tensor, found.examples) == (described.tensor, described.culprits)
    yield (
        f"reproduced: {found.tensor}, examples {_some(found.examples)}"
        if same
        else (f"it fails otherwise here: {found.tensor}, examples {_some(found.examples)}")
    )
    if found.module:
        yield f"it begins in {found.module}"
    yield from _modules(found)
    yield f"weights and batch, as safetensors: {folder}"


def _load_weights(model: nn.Module, file: Path) -> None:
    """BadInput where the model that this source builds has other weights than the kept ones."""
    weights, own = read_tensors(file), untied(model.state_dict())
    if other := sorted(weights.keys() ^ own.keys()):
        raise BadInput(f"{file} was written by another version of the model: {other[0]} is in one of them only")
    if wrong := [name for name, tensor in weights.items() if tensor.shape != own[name].shape]:
        raise BadInput(f"{file} was written by another version of the model: {wrong[0]} has another shape")
    model.load_state_dict(weights, strict=False)  # tied weights are kept once


def _equal(one: Any, other: Any) -> bool:
    return bool(((one.to(other.device) == other) | (one.to(other.device).isnan() & other.isnan())).all())


def _some(examples: list[int]) -> str:
    shown = ", ".join(map(str, examples[:EXAMPLES_SHOWN]))
    return f"[{shown}]" if len(examples) <= EXAMPLES_SHOWN else f"[{shown}, ...] ({len(examples)})"


def _modules(found: Found) -> Iterator[str]:
    width = max(len(seen.module) for seen in found.modules)
    yield f"  {'module':<{width}}  largest output   not finite"
    for seen in found.modules:
        yield f"  {seen.module:<{width}}  {seen.largest:>14.6g}   {seen.not_finite or '-'}"


def _problem(given: Reopened) -> Problem:
    """What the stage was about to train."""

    def take(problem: Problem) -> None:
        raise _Ready(problem)

    numerics.prepare(given.config.numerics, given.config.execution, given.config.own_seed or 0)
    with given.elsewhere() as work:
        work.take_over = take
        try:
            given.stage.function()(work, given.config, **given.inputs)
        except _Ready as ready:
            return ready.problem
    raise BadInput(f"{given.run.path} trains nothing that could be made again")
