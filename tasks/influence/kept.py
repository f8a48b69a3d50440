"""Factors on disk: `request.json` (what they are of), and for each module a JSON of statistics and a safetensors file
of its step. New tensors are durable before the JSON names their step, and the old ones go after that: a process that
dies anywhere leaves each module at one of its steps."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import quote

import numpy as np
import torch
import xxhash
from torch import nn
from torch.utils._pytree import tree_leaves

from storage import durable
from storage.errors import BadInput, require, require_equal
from storage.tensors import read_tensors, write_tensors
from tasks.influence.plan import ModulePlan
from tasks.influence.task import Task

Status = Literal["ok", "jittered", "blocks", "one_side", "diagonal", "excluded", "no_curvature", "not_finite"]
STEPS = ("moments", "eigen", "finished")  # of each a module has tensors, one after the other
log = logging.getLogger("ratchet.influence")


@dataclass(frozen=True)
class ModuleStatistics:
    """How one module's factors came about: `status` is the worst of its sides and their blocks, of which `sides` tells
    all, or says that a side is in `blocks`, that only `one_side` is decomposed, or that there is
    `no_curvature`; `examples` were counted in each factor; `degraded` means worse than was asked for."""

    UNUSABLE: ClassVar = ("not_finite", "no_curvature")  # left out of scores

    name: str
    step: Literal["planned", "moments", "eigen", "finished"] = "planned"
    status: Status = "ok"
    degraded: bool = False
    examples: int = 0
    sides: list[dict[str, Any]] = field(default_factory=list)
    mean_lambda: float | None = None
    digest: str = ""


def begin(folder: Path, request: dict[str, Any], anew: bool = False) -> None:
    """Notes what the factors are of; BadInput where the folder has those of something else. With `anew` those of the
    same model and examples, in other batches or by another plan, are given up in place of that."""
    folder.mkdir(parents=True, exist_ok=True)
    before = durable.read_json(file) if (file := folder / "request.json").exists() else {}
    other = [key for key in before if request.get(key) != before[key]]
    if other and not (anew and {*other} <= {"batch", "plan"}):
        raise BadInput(f"{folder} has factors of another {', '.join(other)}: take a new folder, or remove this one")
    if other:  # the old request stands until nothing that was made for it is left, so a kill in between is no harm
        log.warning("%s: another %s, so what was computed begins anew", folder, " and ".join(other))
        for item in before["plan"]:
            _remove(folder, item["name"], "", *STEPS)
    if before != request:
        durable.write_json(file, request)


def read(folder: Path, item: ModulePlan) -> ModuleStatistics:
    """A module's statistics; at step `planned` where there are none, or its tensors are missing or altered."""
    if (path := _file(folder, item.name, "")).exists():
        done = ModuleStatistics(**durable.read_json(path))
        file = _file(folder, item.name, done.step)
        if file.exists() and durable.sha256_file(file) == done.digest:
            return done
    status: Status = "ok" if item.treatment == "ekfac" else "one_side" if item.one_side else item.treatment
    return ModuleStatistics(item.name, "finished" if status == "excluded" else "planned", status, not item.chosen)


def tidied(folder: Path, statistics: list[ModuleStatistics]) -> list[ModuleStatistics]:
    """The same, without the tensors that processes left which were killed between two steps."""
    for done in statistics:
        _remove(folder, done.name, *(step for step in STEPS if step != done.step))
    return statistics


def write(folder: Path, before: ModuleStatistics, tensors: Mapping[str, torch.Tensor], **new: Any) -> ModuleStatistics:
    """Makes a module's new step durable, and removes the tensors of the one before; returns its statistics."""
    done = replace(before, **new)
    with durable.new_file(file := _file(folder, done.name, done.step)) as temporary:
        write_tensors(temporary, {key: tensor.cpu().contiguous() for key, tensor in tensors.items()})
    done = replace(done, digest=durable.sha256_file(file))
    durable.write_json(_file(folder, done.name, ""), asdict(done))
    _remove(folder, done.name, before.step)
    return done


def tensors_of(folder: Path, done: ModuleStatistics, device: torch.device) -> dict[str, torch.Tensor]:
    """The tensors of a module's step, none before the first."""
    tensors = read_tensors(_file(folder, done.name, done.step)) if done.digest else {}
    return {key: value.to(device) for key, value in tensors.items()}


def _remove(folder: Path, module: str, *steps: str) -> None:
    for step in steps:
        _file(folder, module, step).unlink(missing_ok=True)


def _file(folder: Path, module: str, step: str) -> Path:
    return folder / f"{quote(module, safe='') or '_'}.{f'{step}.safetensors' if step else 'json'}"


def model_digest(model: nn.Module) -> str:
    """xxh3 of the parameters, by which the factors of different models are told apart."""
    return _digest(model.parameters())


def examples_digest(task: Task, indices: np.ndarray) -> str:
    """xxh3 of the tensors of the examples one by one, however `batch` nests them; other values by what they show."""
    return _digest(leaf for index in indices for leaf in tree_leaves(task.batch(np.array([index]))))


def _digest(values: Iterable[object]) -> str:
    digest = xxhash.xxh3_128()
    for value in values:
        if isinstance(value, torch.Tensor):
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        digest.update(str(value.shape if isinstance(value, torch.Tensor) else value).encode())
    return digest.hexdigest()


def complete(folder: Path, model: nn.Module) -> tuple[list[ModulePlan], list[ModuleStatistics]]:
    """Plan and statistics of finished factors; CheckFailed where they are another model's, a module is not finished, or
    counted other examples than planned."""
    request = durable.read_json(folder / "request.json")
    require_equal(f"digest of the model whose factors are in {folder}", request["model"], model_digest(model))
    plan = [ModulePlan(**item) for item in request["plan"]]
    statistics = [read(folder, item) for item in plan]
    for done in statistics:
        require_equal(f"factors of {done.name}", done.step, "finished", "Compute them again: what is there is kept")
        if done.status != "excluded":
            require_equal(f"examples in the factors of {done.name}", done.examples, request["examples"])
    return plan, statistics


def degraded(statistics: Sequence[ModuleStatistics]) -> list[str]:
    """The names of the modules whose factors are worse than what was asked for."""
    return [done.name for done in statistics if done.degraded]


def require_usable(statistics: Sequence[ModuleStatistics], max_degraded_share: float) -> None:
    """CheckFailed, with the names, where more than this share of the modules is degraded: then nothing is ranked."""
    asked, bad = sum(done.degraded or done.status != "excluded" for done in statistics), degraded(statistics)
    measured = f"{len(bad)} of {asked} ({', '.join(bad[:10])}{', ...' * (len(bad) > 10)})"
    require(len(bad) <= max_degraded_share * asked, "degraded modules", measured, f"at most {max_degraded_share:.0%}")
