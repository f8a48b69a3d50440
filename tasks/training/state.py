"""The whole state of a training, which a checkpoint takes at a step boundary and restores bit for bit.

State = model, optimizer, averaged weights if any, every generator, position. The order of the examples and the
learning rate are pure functions of the step, so they need none; gradients are empty between steps.

A guard against spikes decides by steps too, and a training goes back to a checkpoint that the budget fixes, never to
one that was taken because time passed: so the same happens after any kill. What a kill loses of it happens again, from
an earlier checkpoint; later ones are removed when the first one is saved on the new way.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from storage.checkpoints import Checkpoint
from storage.errors import NumericalFailure, require
from tasks.stage.generators import generator_numbers, generator_tensors, load_generator_tensors, load_generators
from tasks.training.budget import SpikeGuard
from tasks.training.gradients import GradientNorms

if TYPE_CHECKING:
    from tasks.training.step import Ahead

MEMORY = 0.9
"""Weight of the steps before in the running mean of the step losses."""


@dataclass
class Guarded:
    """What the guard remembers, which a checkpoint keeps.

    `mean` is an exponential mean of the step losses, the first of them at the start; `best` is its lowest value so far.
    `skipped` are rows of step and example ids, on the way to the present step; `rollbacks` are rows from_step, to_step
    and the reason, the training's whole lineage.
    """

    mean: float | None = None
    best: float | None = None
    skips_in_a_row: int = 0
    skipped: list[dict[str, int | list[int]]] = field(default_factory=list)
    rollbacks: list[dict[str, Any]] = field(default_factory=list)

    def require_no_spike(self, guard: SpikeGuard, step: int, loss: float, examples: list[int]) -> None:
        """Raises NumericalFailure for a loss above `spike_factor` times the running best, where that is above 0."""
        if self.best is not None and loss > guard.spike_factor * self.best > 0:
            fault = f"is {loss:.6g}, more than {guard.spike_factor:g} times its running best of {self.best:.6g},"
            raise NumericalFailure(step, examples, "the loss", fault=fault)

    def add(self, loss: float) -> None:
        """Counts the loss of a step that was made."""
        self.mean = loss if self.mean is None else MEMORY * self.mean + (1 - MEMORY) * loss
        self.best = self.mean if self.best is None else min(self.best, self.mean)
        self.skips_in_a_row = 0

    def skip(self, step: int, examples: list[int]) -> dict[str, int | list[int]]:
        """Counts a step that was not made; returns its row of metrics."""
        self.skips_in_a_row += 1
        self.skipped.append({"examples": examples, "step": step})
        return {"step": step, "skipped_examples": examples}

    def require_few_skipped(self, steps: int) -> None:
        """CheckFailed where more than half of the `steps` up to here were skipped: such a model is hardly trained."""
        require(
            2 * len(self.skipped) <= steps,
            "most steps of the training are made",
            f"{len(self.skipped):,} of {steps:,} skipped",
            "half at most",
            "metrics.jsonl names their examples: correct these, or the size of the inputs, or lower the learning rate",
        )

    def divisor(self, guard: SpikeGuard) -> float:
        """What the learning rate is divided by."""
        return guard.rate_divisor ** len(self.rollbacks)

    def steps_undone(self) -> int:
        """The steps that were made and undone."""
        return sum(row["from_step"] - row["to_step"] for row in self.rollbacks)


Groups = dict[str, dict[str, torch.Tensor]]
"""Named groups of tensors, each one file of a checkpoint."""


@dataclass
class Position:
    """The position of a training, which a checkpoint keeps beside tensors.

    `best_value` and `validations`, rows of [step, value], are of the metric that decides; `further_metrics` are rows
    {"step", name: value} of the others, if any. `recent_examples` counts an example by its weight.
    """

    step: int = 0
    best_step: int | None = None
    best_value: float | None = None
    recent_loss_sum: float = 0.0
    recent_examples: float = 0
    validations: list[list[float]] = field(default_factory=list)
    further_metrics: list[dict[str, float]] = field(default_factory=list)
    gradient_norms: GradientNorms = field(default_factory=GradientNorms)
    epochs: list[dict[str, float]] = field(default_factory=list)
    guard: Guarded | None = None

    def out_of_patience(self, validations: int | None) -> bool:
        """True if the newest `validations` in a row were no better than the best."""
        if validations is None or self.best_step is None:
            return False
        return sum(step > self.best_step for step, _ in self.validations) >= validations

    def count(self, loss_sums: list[float], norm: float, weight: float, clip: float) -> None:
        """Counts a step: the summed losses of its micro-batches, the norm of its gradients, and what it weighs."""
        self.recent_loss_sum += sum(loss_sums)
        self.recent_examples += weight
        self.gradient_norms.add(norm, clip)


@dataclass
class State:
    """All that changes while a training runs. `average` has the averaged weights, if there are any."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    position: Position
    average: torch.optim.swa_utils.AveragedModel | None = None
    changing: bool = False
    """True from the first change of weights until the step counts: one that fails then cannot be made again."""
    ahead: Ahead | None = None
    """The steps that the host has not looked at yet; None where it waits for each."""

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters in its order, cached: a walk through a model takes a millisecond."""
        return list(self.model.parameters())

    def judged(self) -> nn.Module:
        """The network that is validated and kept: the averaged one where there is one."""
        return self.model if self.average is None else self.average.module

    def tensors(self) -> Groups:
        """Every tensor of the state, without a copy; those of the generators are new."""
        groups = {"model": untied(self.model.state_dict()), "optimizer": _optimizer_tensors(self.optimizer)}
        if self.average is not None:
            groups["average"] = untied(self.average.module.state_dict())
        return groups | {"rng": generator_tensors(next(self.model.parameters()).is_cuda)}

    def as_json(self) -> dict[str, object]:
        """The state beside tensors, as JSON."""
        position = asdict(self.position)
        if self.position.guard is None:
            del position["guard"]
        return {
            "position": position,
            "optimizer_groups": self.optimizer.state_dict()["param_groups"],
            "rng": generator_numbers(),
            "averaged_steps": 0 if self.average is None else int(self.average.n_averaged),
        }

    def restore(self, checkpoint: Checkpoint) -> None:
        """Restores the state of a verified checkpoint, in the same time at every step."""
        load_model(self.model, checkpoint)
        _load_optimizer(self.optimizer, checkpoint)
        if self.average is not None:
            load_model(self.average.module, checkpoint, "average")
            self.average.n_averaged.fill_(checkpoint.state["averaged_steps"])
        load_generators(checkpoint.tensors("rng"), checkpoint.state["rng"])
        position = dict(checkpoint.state["position"])
        norms, guard = GradientNorms(**position.pop("gradient_norms")), position.pop("guard", None)
        self.position = Position(**position, gradient_norms=norms, guard=guard and Guarded(**guard))

    def load_best(self, checkpoint: Checkpoint) -> None:
        """Loads the best weights into `model`."""
        load_model(self.model, checkpoint, "model" if self.average is None else "average")


class StepStart:
    """The state before a step that the step changes before its optimizer does: generators and buffers, as copies."""

    def __init__(self, model: nn.Module) -> None:
        self._generators = generator_tensors(next(model.parameters()).is_cuda)
        self._numpy, self._python = np.random.get_state(), random.getstate()
        self._buffers = [buffer.clone() for buffer in model.buffers()]

    def restore(self, state: State) -> None:
        """Restores them, and removes the gradients."""
        state.optimizer.zero_grad(set_to_none=True)
        load_generator_tensors(self._generators)
        np.random.set_state(self._numpy)
        random.setstate(self._python)
        with torch.no_grad():
            for buffer, before in zip(state.model.buffers(), self._buffers, strict=True):
                buffer.copy_(before)


def load_model(model: nn.Module, checkpoint: Checkpoint, group: str = "model") -> None:
    """Loads every tensor; only names that are tied to a loaded one may be absent."""
    tensors = checkpoint.tensors(group)
    expected = set(untied(model.state_dict()))
    if not expected <= set(tensors):
        raise ValueError(f"{checkpoint.path} lacks {sorted(expected - set(tensors))}")
    unexpected = model.load_state_dict(tensors, strict=False).unexpected_keys
    if unexpected:
        raise ValueError(f"{checkpoint.path} holds {unexpected}, which the model does not have")


class Snapshot:
    """Copies of a state's tensors in its own memory, which is allocated once and reused for each checkpoint.

    For a GPU the copies are in page-locked memory, which the device fills at the full rate of the bus.
    """

    def __init__(self) -> None:
        self.groups: Groups = {}

    @property
    def bytes(self) -> int:
        return size_of(self.groups)

    def take(self, groups: Groups) -> None:
        """Copies `groups`; returns when all copies are complete. The old copies must not be in use any more."""
        self.groups = {
            group: {name: self._copy(group, name, tensor) for name, tensor in tensors.items()}
            for group, tensors in groups.items()
        }
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    def _copy(self, group: str, name: str, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        copy = self.groups.get(group, {}).get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return copy.copy_(tensor, non_blocking=True)


def size_of(groups: Groups) -> int:
    """The bytes of all tensors."""
    return sum(tensor.nbytes for tensors in groups.values() for tensor in tensors.values())


def untied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Keeps each storage once: safetensors refuses shared memory, and loading one name sets the tied ones too."""
    owners: dict[int, str] = {}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if tensor.numel() == 0 or owners.setdefault(tensor.data_ptr(), name) == name
    }


def _optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    return {
        f"{index}.{key}": value
        for index, entries in optimizer.state_dict()["state"].items()
        for key, value in entries.items()
        if torch.is_tensor(value)
    }


def _load_optimizer(optimizer: torch.optim.Optimizer, checkpoint: Checkpoint) -> None:
    state: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in checkpoint.tensors("optimizer").items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": checkpoint.state["optimizer_groups"]})
