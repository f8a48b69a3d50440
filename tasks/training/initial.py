"""init_from: a training that begins with the weights of another run.

That is not a continuation. `resume` belongs to one fingerprint and restores everything, strictly; this takes weights
only, into a training with its own optimizer, schedule and order of examples.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage import durable, markers
from storage.checkpoints import MANIFEST, verify
from storage.differences import differences
from storage.errors import BadInput
from storage.run_directory import RunDirectory

ADVICE = "name a finished run directory (<root>/<study>/<stage>/<fingerprint>) or a folder checkpoints/<step> in one"


def identity(place: str) -> dict[str, Any]:
    """What the weights at `place` are, by content; reads no tensor. BadInput when there are none to believe in."""
    path = Path(place).expanduser().absolute()
    _described(path)
    if _is_checkpoint(path):
        return {"checkpoint": durable.sha256_file(path / MANIFEST)}
    return {"outputs": _finished(path, full=False)}


def load_weights(
    model: Any, place: str, ours: dict[str, Any], read_model: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Loads the weights at `place` into `model`, every one; returns where they came from, for the result.

    `read_model` reads a run's folder `model/`, which every study writes in its own way, as a state dictionary. `ours`
    are this stage's scientific fields: when the weights do not fit, BadInput tells them from the other run's.
    """
    path = Path(place).expanduser().absolute()
    described = _described(path)
    if _is_checkpoint(path):
        try:
            verify(path)
        except (OSError, ValueError) as error:
            raise BadInput(f"init_from: {error}: {ADVICE}") from error
        from safetensors.torch import load_file

        tensors = load_file(path / "model.safetensors")
    else:
        _finished(path, full=True)
        tensors = read_model(path / "model")
    try:
        answer = model.load_state_dict(tensors, strict=False)
        tied = {name for name, tensor in model.state_dict().items() if _shares(model, name, tensor, tensors)}
        if wrong := sorted(set(answer.missing_keys) - tied) + sorted(answer.unexpected_keys):
            raise RuntimeError(f"{len(wrong)} names differ, such as {wrong[0]}")
    except RuntimeError as error:
        told = "; ".join(differences(described["scientific"], ours)) or "none"
        raise BadInput(
            f"init_from: the weights of {path} do not fit this model. What differs between the two configurations: "
            f"{told}. ({str(error).splitlines()[-1].strip()})"
        ) from error
    return {
        "study": described["study"],
        "stage": described["stage"],
        "fingerprint": described["fingerprint"],
        **identity(place),
    }


def run_path(place: str) -> Path:
    """The run directory that `place` is, or lies in."""
    path = Path(place).expanduser().absolute()
    return path.parents[1] if _is_checkpoint(path) else path


def _shares(model: Any, name: str, tensor: Any, loaded: dict[str, Any]) -> bool:
    """Whether a weight is tied to one that was loaded: it is set with it, and its name is not saved."""
    state = model.state_dict()
    return any(state[other].data_ptr() == tensor.data_ptr() for other in loaded if other in state and other != name)


def _is_checkpoint(path: Path) -> bool:
    return path.parent.name == "checkpoints" and (path / MANIFEST).is_file()


def _described(path: Path) -> dict[str, Any]:
    try:
        return durable.read_json(run_path(str(path)) / "stage.json")
    except (OSError, ValueError) as error:
        raise BadInput(f"init_from: {path} belongs to no run: {error}. Please {ADVICE}") from error


def _finished(path: Path, full: bool) -> str:
    """The digest of a finished run's outputs; with `full`, every byte of them was read."""
    described = _described(path)
    run = RunDirectory(path.parents[2], described["study"], described["stage"], described["fingerprint"])
    verdict = markers.check_outputs(run, full)
    if not verdict.holds or not (path / "model").is_dir():
        raise BadInput(
            f"init_from: {path} is not a finished run with a model ({verdict.reason or 'no model/'}). Please {ADVICE}"
        )
    return verdict.outputs_digest
