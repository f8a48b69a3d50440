"""The numerics of an attempt: everything beside configuration and data on which the bits of a result depend."""

from __future__ import annotations

import ctypes
import os
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from storage.attempts import version_of
from storage.errors import BadInput
from tasks.stage.execution import Execution

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Names of glibc's malloc.h."""
WORKSPACES, HOPPERS_OWN = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""The memory of cuBLAS for matrix products; this much makes them deterministic. Torch's default on Hopper is as
much."""


@dataclass(frozen=True)
class Numerics:
    """The settings, beside configuration and data, on which the bytes of a stage depend.

    `fields` are fields of its `execution`, `packages` installed packages. A stage with `torch` depends on torch's
    version, the device, `cpu_threads` and `deterministic` too; one without never imports it.
    """

    fields: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    torch: bool = True


def prepare(declared: Numerics, execution: Execution, seed: int) -> dict[str, Any]:
    """Seeds every generator of this process, sets up torch for a stage that uses it, and returns the numerics.

    Two attempts with equal numerics produce equal bytes. Raises BadInput when cuda is asked for but missing.
    """
    import numpy as np

    # both must be set before any stage of this process loads torch. Waiting OpenMP threads sleep, or they would starve
    # whatever shares the cores (a step took twice as long beside one busy process); the partition of the work, and so
    # the bits, stay the same
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault(WORKSPACES, HOPPERS_OWN)  # read by cuBLAS when it first starts
    random.seed(seed)
    np.random.seed(seed % 2**32)
    return {
        **(_prepare_torch(execution, seed) if declared.torch else {}),
        **{name: getattr(execution, name) for name in declared.fields},
        **{name: version_of(name) for name in declared.packages},
    }


def _prepare_torch(execution: Execution, seed: int) -> dict[str, Any]:
    import torch

    target = device(execution)
    if target.type == "cpu":
        _keep_freed_memory()
    torch.set_num_threads(execution.cpu_threads)
    torch.use_deterministic_algorithms(execution.deterministic)
    # with deterministic algorithms torch fills new memory with NaN, so that a read of unwritten memory shows. No value
    # depends on it where there is no such read, and it costs a GPU's training a sixth more time
    torch.utils.deterministic.fill_uninitialized_memory = target.type == "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(seed)
    if target.type == "cuda":
        _read_workspaces_once(target)
    return {
        "device": target.type,
        "device_model": _device_model(target),
        "cpu_threads": execution.cpu_threads,
        "deterministic": execution.deterministic,
        "torch": torch.__version__,
    }


def _read_workspaces_once(target: Any) -> None:
    """Removes WORKSPACES from the environment once torch has read it, where that changes nothing but the time.

    The first matrix product asks whether it is deterministic, and the answer stays. Before 2.13 torch parses it again,
    by a regular expression, up to three times in every product: 56 us each, more than the start of the product takes.
    """
    import torch

    if torch.cuda.get_device_capability(target) != (9, 0) or os.environ.get(WORKSPACES) != HOPPERS_OWN:
        return
    matrix = torch.ones(8, 8, device=target)
    matrix @ matrix
    del os.environ[WORKSPACES]
    try:
        matrix @ matrix
    except RuntimeError:  # a torch that asks every time
        os.environ[WORKSPACES] = HOPPERS_OWN


def _keep_freed_memory() -> None:
    """Lets malloc reuse freed memory of any size instead of returning it to the kernel.

    Every step allocates the same activations and logits. By default glibc maps each anew and the kernel clears every
    page of it: a tenth of a CPU step of a small model (tests/benchmarks). No value depends on it.
    """
    with suppress(OSError, AttributeError):  # another C library: slower, and equal
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def _device_model(target: Any) -> str:
    """The GPU's name, or the instruction set on which torch's CPU kernels, and so their rounding, depend."""
    import torch

    if target.type == "cuda":
        return torch.cuda.get_device_name(target)
    return f"CPU with {torch.backends.cpu.get_cpu_capability()}"


def device(execution: Execution) -> Any:
    """The torch device that `execution` asks for; BadInput when it is cuda and there is none."""
    import torch

    if execution.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if execution.device == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            "execution.device is cuda, and torch finds no GPU here: run on a GPU node, or set execution.device=cpu"
        )
    return torch.device(execution.device)
