"""What is looked at before the work begins: room on the disk, the device, the versions.

Nothing here is part of a result: the environment must not change a digest.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
from pathlib import Path
from typing import Any

from storage.errors import BadInput
from tasks.study import Execution

PACKAGES = ("torch", "transformers", "tokenizers", "datasets", "prefect", "numpy")
NUMERICS_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS")
BYTES_PER_CHARACTER = 8  # text twice in Parquet (cache, splits) and packed tokens, generously
BYTES_PER_PARAMETER = 4  # fp32
TENSORS_PER_CHECKPOINT = 3  # weights and two AdamW moments
ARMS = 2
GIB = 1024**3


def preflight(run_directory: Path, execution: Execution, need_bytes: int) -> dict[str, Any]:
    """The facts of this environment, as JSON; raises BadInput when the disk or the device will not do.

    `need_bytes` is what the work is estimated to write below `run_directory`, which must exist.
    """
    free_bytes = shutil.disk_usage(run_directory).free
    if need_bytes > free_bytes:
        raise BadInput(
            f"the work needs about {need_bytes / GIB:.2f} GiB below {run_directory}, where "
            f"{free_bytes / GIB:.2f} GiB are free: make room (python -m storage prune) or give another --root"
        )
    return {
        "disk": {"folder": str(run_directory), "need_bytes": need_bytes, "free_bytes": free_bytes},
        "memory_total_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "device": _device(execution.device),
        "gpus": _gpus(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}},
        "determinism": {
            "deterministic": execution.deterministic,
            "cpu_threads": execution.cpu_threads,
            "environment": {name: os.environ.get(name) for name in NUMERICS_VARIABLES},
        },
    }


def estimate_disk_bytes(*, characters: int, parameters: int, keep_checkpoints: int) -> int:
    """What a study writes, roughly: text and blocks, and for each arm a model and its checkpoints.

    characters x 8 + parameters x 4 x (1 + 3 x (keep_checkpoints + 1)) x 2 arms; the one checkpoint more than
    is kept is the best one. Records and logs are small beside these.
    """
    checkpoints = TENSORS_PER_CHECKPOINT * (keep_checkpoints + 1)
    return characters * BYTES_PER_CHARACTER + parameters * BYTES_PER_PARAMETER * (1 + checkpoints) * ARMS


def _device(asked: str) -> str:
    """`cpu` or `cuda`; torch is asked only when the answer depends on it."""
    if asked == "cpu":
        return "cpu"
    import torch

    there = torch.cuda.is_available()
    if asked == "cuda" and not there:
        raise BadInput(
            "execution.device is cuda, but torch finds no CUDA device here: run where there is a GPU, or set it to cpu"
        )
    return "cuda" if there else "cpu"


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


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
