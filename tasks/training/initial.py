"""init_from: a training that begins with the weights of another run, or with a part of another model of its study.

The former is no continuation, which belongs to one fingerprint and restores everything: it loads weights only, into a
training with its own optimizer, schedule and order of examples. The other run must be finished: its `model/` stays,
while checkpoints are pruned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage import durable, markers
from storage.errors import BadInput, did_you_mean
from storage.lineage import differences
from storage.run_directory import RunDirectory
from storage.tensors import read_tensors
from tasks.stage.result import Result

if TYPE_CHECKING:
    import torch
    from torch import nn

ADVICE = "name a finished run directory (<root>/<study>/<stage>/<fingerprint>)"


class InitialWeights(Result):
    """The finished run whose weights a training began with; `outputs` is the digest of all that it left."""

    study: str
    stage: str
    fingerprint: str
    outputs: str


def identity(place: str) -> dict[str, str]:
    """The content of the run at `place` by digest; reads no tensor. BadInput when it is not finished."""
    return {"outputs": _require_finished(run_path(place), full=False)}


def load_weights(
    model: nn.Module,
    place: str,
    scientific: dict[str, object],
    read_model: Callable[[Path], dict[str, torch.Tensor]],
) -> InitialWeights:
    """Loads every weight of the run at `place` into `model`; returns their origin, for the result.

    `read_model` reads a run's folder `model/`, which every study writes in its own way, as a state dictionary.
    `scientific` are this stage's scientific fields: when the weights do not fit, BadInput names those that differ.
    """
    path = run_path(place)
    stage, outputs = _read_stage(path), _require_finished(path, full=True)
    tensors = read_model(path / "model")
    try:
        keys = model.load_state_dict(tensors, strict=False)
        state = model.state_dict()
        loaded = {state[name].data_ptr() for name in tensors if name in state}
        missing = [name for name in keys.missing_keys if state[name].data_ptr() not in loaded]  # not merely tied
        if names := sorted(missing) + sorted(keys.unexpected_keys):
            raise RuntimeError(f"{len(names)} names differ, such as {names[0]}")
    except RuntimeError as error:
        changes = "; ".join(differences(stage["scientific"], scientific)) or "none"
        raise BadInput(
            f"init_from: the weights of {path} do not fit this model. The configurations differ in: "
            f"{changes}. ({str(error).splitlines()[-1].strip()})"
        ) from error
    return InitialWeights(study=stage["study"], stage=stage["stage"], fingerprint=stage["fingerprint"], outputs=outputs)


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


def run_path(place: str) -> Path:
    """The run directory that a person named."""
    return Path(place).expanduser().absolute()


def _read_stage(path: Path) -> dict[str, Any]:
    try:
        return durable.read_json(path / "stage.json")
    except (OSError, ValueError) as error:
        raise BadInput(f"init_from: {path} is no run directory: {error}. Please {ADVICE}") from error


def _require_finished(path: Path, full: bool) -> str:
    """The digest of a finished run's outputs; with `full`, every byte of them was read."""
    stage = _read_stage(path)
    run = RunDirectory(path.parents[2], stage["study"], stage["stage"], stage["fingerprint"])
    verdict = markers.check_outputs(run, full)
    if not verdict.holds or not (path / "model").is_dir():
        raise BadInput(
            f"init_from: {path} is not a finished run with a model ({verdict.reason or 'no model/'}). Please {ADVICE}"
        )
    return verdict.outputs_digest
