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
"""The memory that cuBLAS has for matrix products; with this much they are deterministic. On Hopper torch takes as much
unasked."""


@dataclass(frozen=True)
class Numerics:
    """On what the bytes of a stage depend, beside its configuration and data.

    `fields` are fields of its `execution`, `packages` installed packages. A stage with `torch` depends on torch's
    version, the device, `cpu_threads` and `deterministic` too; one without never imports it.
    """

    fields: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    torch: bool = True


def prepare(declared: Numerics, execution: Execution, seed: int) -> dict[str, Any]:
    """Seeds every generator of this process, sets up torch for a stage that uses it, and returns the numerics.

    Two attempts with equal numerics produce equal bytes. Raises BadInput when cuda is asked for and not there.
    """
    import numpy as np

    # both before torch is loaded, by whatever stage of this process. OpenMP's threads that wait sleep, or they starve
    # whatever shares the cores (a step took twice as long beside one busy process); the partition of the work, and so
    # the bits, are the same
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

    chosen = device(execution)
    if chosen.type == "cpu":
        _keep_freed_memory()
    torch.set_num_threads(execution.cpu_threads)
    torch.use_deterministic_algorithms(execution.deterministic)
    # with deterministic algorithms torch writes NaN into whatever memory it takes, so that a read of memory that nobody
    # wrote shows. No value depends on it where there is none, and a GPU's training takes a sixth more time
    torch.utils.deterministic.fill_uninitialized_memory = chosen.type == "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    torch.manual_seed(seed)
    if chosen.type == "cuda":
        _read_workspaces_once(chosen)
    return {
        "device": chosen.type,
        "device_model": _device_model(chosen),
        "cpu_threads": execution.cpu_threads,
        "deterministic": execution.deterministic,
        "torch": torch.__version__,
    }


def _read_workspaces_once(chosen: Any) -> None:
    """Takes WORKSPACES out of the environment once torch has seen it, where that changes nothing but the time.

    The first matrix product asks whether it is deterministic, and that answer stays. Before 2.13 torch parses it again,
    by a regular expression, up to three times in every product: 56 us each, more than it takes to start the product.
    """
    import torch

    if torch.cuda.get_device_capability(chosen) != (9, 0) or os.environ.get(WORKSPACES) != HOPPERS_OWN:
        return
    some = torch.ones(8, 8, device=chosen)
    some @ some
    del os.environ[WORKSPACES]
    try:
        some @ some
    except RuntimeError:  # a torch that asks every time
        os.environ[WORKSPACES] = HOPPERS_OWN


def _keep_freed_memory() -> None:
    """Lets malloc use again what was freed, however large, instead of returning it to the kernel.

    Every step allocates the same activations and logits. By default glibc maps each anew and the kernel clears every
    page of it: a tenth of a CPU step of a small model (tests/benchmarks). No value depends on it.
    """
    with suppress(OSError, AttributeError):  # another C library: slower, and equal
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)


def _device_model(chosen: Any) -> str:
    """The GPU's name, or the instruction set on which torch's CPU kernels, and so their rounding, depend."""
    import torch

    if chosen.type == "cuda":
        return torch.cuda.get_device_name(chosen)
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
