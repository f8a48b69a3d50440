"""The numerics of an attempt: everything beside configuration and data on which the bits of a result depend."""

from __future__ import annotations

import ctypes
import os
import random
from contextlib import suppress
from typing import Any

from storage.attempts import package_versions
from storage.errors import BadInput
from tasks.stage.execution import Execution

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Names of glibc's malloc.h."""


def prepare(execution: Execution, seed: int) -> dict[str, Any]:
    """Sets up torch for this process, seeds every generator, and returns the numerics.

    Two attempts with equal numerics produce equal bytes. Raises BadInput when cuda is asked for and not there.
    """
    # read by OpenMP when torch loads: threads that wait sleep, or they starve whatever shares the cores (a step
    # took twice as long beside one busy process); the partition of the work, and so the bits, are the same
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    import numpy as np
    import torch

    _keep_freed_memory()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read by cuBLAS when it first starts
    torch.set_num_threads(execution.cpu_threads)
    torch.use_deterministic_algorithms(execution.deterministic)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    chosen = device(execution)
    return {
        "device": chosen.type,
        "device_model": _device_model(chosen),
        "cpu_threads": execution.cpu_threads,
        "deterministic": execution.deterministic,
        "micro_batch_examples": execution.micro_batch_examples,
        "evaluation_batch_examples": execution.evaluation_batch_examples,
        "attack_batch_examples": execution.attack_batch_examples,
        "torch": torch.__version__,
        "transformers": package_versions().get("transformers"),
    }


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
