"""A training that ran out of memory: smaller micro-batches where that is allowed, else advice from the measurement."""

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from storage import durable
from storage.errors import CheckFailed
from tasks.stage.execution import Execution
from tasks.stage.numerics import is_within
from tasks.stage.outcome import is_out_of_memory
from tasks.stage.preflight import GIB
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.state import Position

KEY = "micro_batch_examples"
TENSORS_HELD = 4
"""Copies of the weights in memory for any micro-batch: fp32 weights, gradients and AdamW's two moments."""


class DoesNotFit(CheckFailed):
    """A micro-batch did not fit in memory."""


class MicroBatchSize:
    """The size of the micro-batches at each step: as configured, until memory ended and it was halved.

    A change stands in stage.json before its step is made again. A continuation has the same size at the same step,
    whether or not it would have to change there, and so the same bytes.
    """

    def __init__(self, run: StageRun, execution: Execution) -> None:
        self._run, self._execution = run, execution
        self._changes: list[dict[str, Any]] = []
        begun = [durable.read_json(run.run.stage_file)["numerics"]] if run.run.stage_file.exists() else []
        last = None
        for change in [*begun, *run.numerics_changes]:
            if is_within(change):
                self._changes += [change] * (KEY in change)
            elif change.get(KEY) != last:  # a person set it, and what was before is over
                self._changes, last = [], change.get(KEY)

    def after(self, position: Position) -> int:
        """The size at the step after `position`. A training that went back to an earlier step keeps a change."""
        here = (_rollbacks(position), position.step + 1)
        sizes = [row[KEY] for row in self._changes if (row.get("after_rollbacks", 0), row["from_step"]) <= here]
        return sizes[-1] if sizes else self._execution.micro_batch_examples

    def halve(self, position: Position, examples: int, model: nn.Module) -> bool:
        """Halves the size after `position`, where the window has `examples`; False if not allowed, or impossible.

        A model with batch norm is another one for each size.
        """
        size = min(self.after(position), examples) // 2
        if not (size and self._execution.fit_memory) or any(isinstance(m, _BatchNorm) for m in model.modules()):
            return False
        change = {"from_step": position.step + 1, KEY: size}
        if rollbacks := _rollbacks(position):
            change["after_rollbacks"] = rollbacks
        self._run.change_numerics(change)
        self._changes.append(change)
        self._run.log.warning(
            "out of memory at step %s: it is made again with micro-batches of %s, and so are those that follow; the "
            "effective batch stays as it is",
            f"{position.step + 1:,}",
            size,
            extra=FOR_THE_TERMINAL,
        )
        return True


def _rollbacks(position: Position) -> int:
    return len(position.guard.rollbacks) if position.guard else 0


@contextmanager
def explain_out_of_memory(model: nn.Module, execution: Execution, examples: int) -> Iterator[None]:
    """Turns an allocation that failed into DoesNotFit, which says what to change and what fits; no other error.

    `examples` are those of a micro-batch.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        device = next(model.parameters()).device
        total, peak = _total_bytes(device), _peak_bytes(device) + _asked_bytes(error)
        fixed = TENSORS_HELD * sum(parameter.nbytes for parameter in model.parameters())
        raise DoesNotFit(
            "a micro-batch fits in memory",
            f"{peak / GIB:.2f} GiB needed at least, of which weights, gradients and AdamW's moments {fixed / GIB:.2f}",
            f"at most {total / GIB:.2f} GiB, which this {device.type} has for us",
            _advice(execution, examples, total, peak, fixed),
        ) from error


def _advice(execution: Execution, examples: int, total: int, peak: int, fixed: int) -> str:
    per_example = max(1.0, (peak - fixed) / examples)
    fits = min(int((total - fixed) / per_example), examples - 1)
    remedies = []
    if fits >= 1:
        remedies.append(
            f"set execution.micro_batch_examples (now {examples}) to {fits} or less: by what was measured no more fit; "
            "the effective batch stays as it is. Steps that were trained already had other numerics: to keep them, set "
            "execution.allow_numerics_change=true too"
        )
        if not execution.fit_memory:
            remedies.append("set execution.fit_memory=true, and the training does so by itself")
    if execution.gradient_checkpointing is not True:
        remedies.append("set execution.gradient_checkpointing=true")
    remedies.append("take a device with more memory, or one that nobody else uses")
    return "; or ".join(remedies)


def _total_bytes(device: torch.device) -> int:
    """The memory for this process: the GPU's, or the lesser of the machine's and its own limit."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), resource.getrlimit(resource.RLIMIT_AS)[0]]
    return min(limit for limit in limits if limit != resource.RLIM_INFINITY)


def _peak_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _asked_bytes(error: BaseException) -> int:
    """The size of the failed allocation in torch's message for a CPU or a GPU; 0 without one."""
    if match := re.search(r"allocate (\d+) bytes", str(error)):
        return int(match[1])
    if match := re.search(r"allocate ([0-9.]+) ([KMG])iB", str(error)):
        return int(float(match[1]) * 1024 ** ("KMG".index(match[2]) + 1))
    return 0
