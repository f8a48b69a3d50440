"""Models kept on the way of a training: after given shares of its steps, the same bytes after any kill."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from storage import durable
from storage.errors import BadInput
from tasks.language import model as language
from tasks.language.training import Checks
from tasks.stage.run import StageInput, StageRun
from tasks.training.schedule import Schedule

DESCRIPTION = "snapshot.json"


def snapshot_checks(run: StageRun, text: StageInput, folders: dict[str, float], schedule: Schedule) -> Checks:
    """Step -> checks that publish the model as it then is; `folders`: output folder -> share of the steps, at least 1.

    These are the weights themselves, not their average where the budget asks for one.
    """
    checks: Checks = {}
    for folder, share in folders.items():
        step = max(1, round(share * schedule.total_steps))
        checks.setdefault(step, []).append(partial(_publish, run, text, folder, step))
    return checks


def list_snapshots(run: StageRun, folders: Iterable[str]) -> None:
    """Makes sure that the stage's outputs list every snapshot, also when an earlier attempt published it.

    BadInput when one is missing that can only have been taken away, since the training is past its step.
    """
    for folder in folders:
        if not _is_there(run, folder):
            raise BadInput(
                f"{run.directory / folder} is missing, and the training is past its step: delete "
                f"{run.directory / 'checkpoints'}, and the same command trains anew"
            )
        if folder not in run.outputs:
            run.outputs.append(folder)


def _publish(run: StageRun, text: StageInput, folder: str, step: int, model: nn.Module) -> None:
    """Writes the snapshot unless it is there: steps that a kill took away are trained again to the same bytes."""
    if _is_there(run, folder):
        return
    assert isinstance(model, PreTrainedModel)
    with run.publish(folder) as place:
        language.save(model, text.path / "text" / "tokenizer", place, effective_state(model))
        durable.write_json(place / DESCRIPTION, {"step": step, **run.identity})


def _is_there(run: StageRun, folder: str) -> bool:
    """True where the snapshot was made from the inputs as they are now, like a checkpoint that may be continued."""
    file: Path = run.directory / folder / DESCRIPTION
    if not file.is_file():
        return False
    described = durable.read_json(file)
    return {key: described.get(key) for key in run.identity} == run.identity


@torch.no_grad()
def effective_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The model's state with the effective weight in the place of what a parametrization trains; shares the rest."""
    state = model.state_dict()
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            del state[f"{name}.parametrizations.weight.original"]
            state[f"{name}.weight"] = module.weight.detach()
    return state
