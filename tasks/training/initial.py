"""A training that begins with a part of another model of its study."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from storage import durable
from storage.errors import BadInput, did_you_mean
from storage.tensors import read_tensors
from tasks.stage.result import Result

if TYPE_CHECKING:
    import torch
    from torch import nn


class TakenPart(Result):
    """A part of another model with which a training began, by names of tensors: those that were taken, those that this
    model has beside them, and those of the other model for which this one has no place."""

    taken: list[str]
    fresh: list[str]
    refused: list[str]


def load_part(model: nn.Module, folder: Path, part: str, required: Mapping[str, object]) -> TakenPart:
    """Loads the tensors below `part` (`encoder.`) of a kept model (`model.safetensors`, `config.json`) into `model`.

    BadInput names what `config.json` says otherwise than `required` (such as the task that it was trained on, and the
    digest of its normaliser, which no number would betray), and a tensor that is missing there, has another shape or
    precision, or is not finite.
    """
    try:
        described, theirs = durable.read_json(folder / "config.json"), read_tensors(folder / "model.safetensors")
    except (OSError, ValueError) as error:
        raise BadInput(f"start: {folder} holds no model that was kept: {error}") from error
    for name, value in required.items():
        if described.get(name) != value:
            raise BadInput(
                f"start: the model in {folder} has the {name} {described.get(name)}, and {value} is asked for"
            )
    ours = model.state_dict()
    wanted = [name for name in ours if name.startswith(part)]
    if not wanted:
        hint = did_you_mean(part, {f"{name.partition('.')[0]}." for name in ours})
        raise BadInput(f"start: no tensor of this model begins with {part}. {hint}")
    for name in wanted:
        here, there = (_kind(tensors.get(name)) for tensors in (ours, theirs))
        if there != here:
            raise BadInput(f"start: {name} is {here} here, and {there} in {folder}")
        if not theirs[name].isfinite().all():
            raise BadInput(f"start: {name} is not finite in {folder}: train that model again")
    model.load_state_dict({name: theirs[name] for name in wanted}, strict=False)
    return TakenPart(
        taken=wanted, fresh=[name for name in ours if name not in wanted], refused=sorted({*theirs} - {*wanted})
    )


def _kind(tensor: torch.Tensor | None) -> str:
    return "missing" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
