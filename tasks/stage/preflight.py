"""Checks before the work begins: space on the disk, the machine, the versions.

Nothing here is part of a result: the environment must not change a digest.
"""

import os
import shutil
from pathlib import Path
from typing import Any

from storage.attempts import package_versions
from storage.errors import BadInput

GIB = 1024**3
NUMERICS_VARIABLES = ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS")


def preflight(run_directory: Path, need_bytes: int) -> dict[str, Any]:
    """The facts of this environment, as JSON; raises BadInput when the disk is too full. No torch is imported.

    `need_bytes` is the estimate of what the work writes below `run_directory`, which must exist.
    """
    free_bytes = require_disk(run_directory, need_bytes)
    return {
        "disk": {"folder": str(run_directory), "need_bytes": need_bytes, "free_bytes": free_bytes},
        "memory_total_bytes": memory_bytes("cpu"),
        "gpus": _gpus(),
        "versions": package_versions(),
        "environment": {name: os.environ.get(name) for name in NUMERICS_VARIABLES},
    }


def require_disk(folder: Path, need_bytes: int) -> int:
    """The free bytes of the disk of `folder`; BadInput when fewer than `need_bytes`."""
    free_bytes = shutil.disk_usage(folder).free
    if need_bytes > free_bytes:
        raise BadInput(
            f"the work needs about {need_bytes / GIB:.2f} GiB below {folder}, where "
            f"{free_bytes / GIB:.2f} GiB are free: make room (python -m storage prune) or give another --root"
        )
    return free_bytes


def memory_bytes(kind: str) -> int:
    if kind == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    import torch

    return torch.cuda.get_device_properties(0).total_memory


def _gpus() -> list[str]:
    """One line of nvidia-smi for each GPU (name, memory, driver); empty on a machine without it."""
    if shutil.which("nvidia-smi") is None:
        return []
    from prefect_shell import ShellOperation

    query = "timeout 20 nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv,noheader"
    try:
        return list(ShellOperation(commands=[query], stream_output=False).run())
    except RuntimeError as error:  # a driver that does not answer; torch says if that matters
        return [f"nvidia-smi failed: {error}"]
