"""What is looked at before the work begins: room on the disk, the device, the versions.

Nothing here is part of a result: the environment must not change a digest.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from storage.attempts import package_versions
from storage.errors import BadInput
from tasks.execution import Execution
from tasks.numerics import device

NUMERICS_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS")
BYTES_PER_CHARACTER = 8  # text twice in Parquet (cache, splits) and packed tokens, generously
BYTES_PER_PARAMETER = 4  # fp32
MODELS = 5  # untrained, base, constrained, and the two arms
TRAININGS = 3  # base and the two arms
TENSORS_PER_CHECKPOINT = 3  # weights and two AdamW moments
TENSORS_IN_TRAINING = 4  # the same, and the gradients
GIB = 1024**3


def preflight(run_directory: Path, execution: Execution, need_bytes: int) -> dict[str, Any]:
    """The facts of this environment, as JSON; raises BadInput when the disk or the device will not do.

    `need_bytes` is what the work is estimated to write below `run_directory`, which must exist.
    """
    free_bytes = require_disk(run_directory, need_bytes)
    return {
        "disk": {"folder": str(run_directory), "need_bytes": need_bytes, "free_bytes": free_bytes},
        "memory_total_bytes": _memory_bytes("cpu"),
        "device": device(execution).type,
        "gpus": _gpus(),
        "versions": package_versions(),
        "determinism": {
            "deterministic": execution.deterministic,
            "cpu_threads": execution.cpu_threads,
            "environment": {name: os.environ.get(name) for name in NUMERICS_VARIABLES},
        },
    }


def require_disk(folder: Path, need_bytes: int) -> int:
    """The bytes that are free where `folder` lies; BadInput when fewer than `need_bytes`."""
    free_bytes = shutil.disk_usage(folder).free
    if need_bytes > free_bytes:
        raise BadInput(
            f"the work needs about {need_bytes / GIB:.2f} GiB below {folder}, where "
            f"{free_bytes / GIB:.2f} GiB are free: make room (python -m storage prune) or give another --root"
        )
    return free_bytes


def require_memory(parameters: int, execution: Execution) -> None:
    """BadInput when weights, gradients and optimizer alone do not fit the device's memory."""
    kind = device(execution).type
    need_bytes, total_bytes = parameters * BYTES_PER_PARAMETER * TENSORS_IN_TRAINING, _memory_bytes(kind)
    if need_bytes > total_bytes:
        raise BadInput(
            f"training {parameters:,} parameters needs {need_bytes / GIB:.1f} GiB for weights, gradients and "
            f"optimizer alone, and this {kind} has {total_bytes / GIB:.1f} GiB: take a larger device or a smaller model"
        )


def estimate_disk_bytes(*, characters: int, parameters: int, keep_checkpoints: int) -> int:
    """What a study writes at most, roughly: text and blocks, models, and the checkpoints of each training.

    A training holds the kept checkpoints, the best one, and the one being written. Records and logs are small
    beside these.
    """
    checkpoints = TRAININGS * TENSORS_PER_CHECKPOINT * (keep_checkpoints + 2)
    return characters * BYTES_PER_CHARACTER + parameters * BYTES_PER_PARAMETER * (MODELS + checkpoints)


def _memory_bytes(kind: str) -> int:
    if kind == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def _gpus() -> list[str]:
    """One line a GPU (name, memory, driver) as nvidia-smi says it; empty on a machine without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    from prefect_shell import ShellOperation

    query = "timeout 20 nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader"
    try:
        return list(ShellOperation(commands=[query], stream_output=False).run())
    except RuntimeError as error:  # a driver that does not answer; whether it matters, torch says
        return [f"nvidia-smi failed: {error}"]
