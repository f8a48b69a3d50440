"""Advice for a training that ran out of memory, from the measurement when it did."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from storage.errors import CheckFailed
from tasks.stage.execution import Execution
from tasks.stage.preflight import GIB

TENSORS_HELD = 4
"""Copies of the weights in memory for any micro-batch: fp32 weights, gradients and AdamW's two moments."""


@contextmanager
def explain_out_of_memory(model: nn.Module, execution: Execution) -> Iterator[None]:
    """Turns an allocation that failed into a CheckFailed that says which setting to change, and what fits."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)):
            raise
        device = next(model.parameters()).device
        total, peak = _total_bytes(device), _peak_bytes(device) + _asked_bytes(error)
        fixed = TENSORS_HELD * sum(parameter.nbytes for parameter in model.parameters())
        raise CheckFailed(
            "a micro-batch fits in memory",
            f"{peak / GIB:.2f} GiB needed at least, of which weights, gradients and AdamW's moments {fixed / GIB:.2f}",
            f"at most {total / GIB:.2f} GiB, which this {device.type} has for us",
            _advice(execution, total, peak, fixed),
        ) from error


def _advice(execution: Execution, total: int, peak: int, fixed: int) -> str:
    examples = execution.micro_batch_examples
    per_example = max(1.0, (peak - fixed) / examples)
    fits = min(int((total - fixed) / per_example), examples - 1)
    remedies = []
    if fits >= 1:
        remedies.append(
            f"set execution.micro_batch_examples (now {examples}) to {fits} or less: by what was measured no more fit; "
            "the effective batch stays as it is. Steps that were trained already had other numerics: to keep them, set "
            "execution.allow_numerics_change=true too"
        )
    if not execution.gradient_checkpointing:
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
