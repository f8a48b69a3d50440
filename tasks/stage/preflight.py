"""What is checked before the work begins: room on the disk, the machine, the versions.

Nothing here is part of a result: the environment must not change a digest.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from storage.attempts import package_versions
from tasks.stage.disk import require_disk

NUMERICS_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS")


def preflight(run_directory: Path, need_bytes: int) -> dict[str, Any]:
    """The facts of this environment, as JSON; raises BadInput when the disk will not do. No torch is imported.

    `need_bytes` is what the work is estimated to write below `run_directory`, which must exist.
    """
    free_bytes = require_disk(run_directory, need_bytes)
    return {
        "disk": {"folder": str(run_directory), "need_bytes": need_bytes, "free_bytes": free_bytes},
        "memory_total_bytes": memory_bytes("cpu"),
        "gpus": _gpus(),
        "versions": package_versions(),
        "environment": {name: os.environ.get(name) for name in NUMERICS_VARIABLES},
    }


def memory_bytes(kind: str) -> int:
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
