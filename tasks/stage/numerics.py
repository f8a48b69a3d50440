"""The numerics of an attempt: everything beside configuration and data on which the bits of a result depend."""

import ctypes
import importlib.util
import os
import random
import re
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.attempts import version_of
from storage.errors import BadInput
from tasks.stage.execution import Execution

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4
"""Names of glibc's malloc.h."""
WORKSPACES, HOPPERS_OWN = "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
"""The memory of cuBLAS for matrix products; this much makes them deterministic. Torch's default on Hopper is as
much."""

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
"""Among so many threads the libraries part a sum: each stage sets them, from its `cpu_threads`."""
ENVIRONMENT = (
    *("OPENBLAS_CORETYPE", "BLIS_ARCH_TYPE", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "MKL_DEBUG_CPU_TYPE"),
    *("MKL_DYNAMIC", "MKL_THREADING_LAYER", "MKL_DOMAIN_NUM_THREADS", "OMP_DYNAMIC", "OMP_SCHEDULE"),
    *("OMP_THREAD_LIMIT", "ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "GLIBC_TUNABLES"),
    *("DNNL_DEFAULT_FPMATH_MODE", "ONEDNN_DEFAULT_FPMATH_MODE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES"),
    *("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
)
"""Variables by which libraries choose their kernels, and so the last bits: part of the numerics, and given to jobs."""

DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Numerics:
    """The settings, beside configuration and data, on which the bytes of a stage depend.

    `fields` are fields of its `execution`, `packages` installed packages. A stage with `torch` depends on torch's
    version, the device, `cpu_threads` and `deterministic` too; one without never imports it. One that is given
    micro-batches, or that `searches`, depends on `compile` too.
    """

    fields: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    torch: bool = True
    searches: bool = False

    @property
    def compiles(self) -> bool:
        """True if `execution.compile` says how a step, or a pass of a search, is made."""
        return self.searches or (self.torch and "micro_batch_examples" in self.fields)


def within(changes: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """What `key` became within a training, of changes of numerics, in words."""
    return [
        f"{change[key]} from step {change['from_step']}" for change in changes if is_within(change) and key in change
    ]


def is_within(change: Mapping[str, Any]) -> bool:
    """True for a change of numerics within a training, which each attempt makes again by itself."""
    return "from_step" in change


def newest(stage: Mapping[str, Any]) -> dict[str, Any]:
    """The numerics with which a stage goes on, by its stage.json: those of its first attempt, or the last change."""
    changes = [change for change in stage.get("numerics_changes", []) if not is_within(change)]
    return (changes or [stage.get("numerics", {})])[-1]


def environment() -> dict[str, str]:
    """The variables of ENVIRONMENT that are set."""
    return {name: value for name in ENVIRONMENT if (value := os.environ.get(name))}


def prepare(declared: Numerics, execution: Execution, seed: int) -> dict[str, Any]:
    """Seeds every generator of this process, sets up torch for a stage that uses it, and returns the numerics.

    Two attempts with equal numerics produce equal bytes. Raises BadInput when cuda is asked for but missing.
    """
    os.environ |= dict.fromkeys(THREADS, str(execution.cpu_threads))  # for what is loaded, or started, from now on
    import numpy as np
    from threadpoolctl import threadpool_limits

    threadpool_limits(execution.cpu_threads)  # for what is loaded already

    # both must be set before any stage of this process loads torch. Waiting OpenMP threads sleep, or they would starve
    # whatever shares the cores (a step took twice as long beside one busy process); the partition of the work, and so
    # the bits, stay the same
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ.setdefault(WORKSPACES, HOPPERS_OWN)  # read by cuBLAS when it first starts
    seed_generators(seed)
    np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")  # a stage before may have set others
    return {
        **(_prepare_torch(execution, seed) if declared.torch else {}),
        "environment": ", ".join(f"{name}={value}" for name, value in environment().items()) or "none",
        **({"compile": execution.compile} if declared.compiles and execution.compile != "none" else {}),
        **{name: getattr(execution, name) for name in declared.fields},
        **{name: version_of(name) for name in declared.packages},
    }


def seed_generators(seed: int) -> None:
    """Seeds the generators of Python, NumPy and, where it is loaded, torch."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(seed)


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
    # what a stage before in this process may have set for itself
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)
    torch.set_float32_matmul_precision("highest")
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
    page of it: a tenth of a CPU step of a small model (benchmarks). No value depends on it.
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


def machine(declared: Numerics, execution: Execution) -> str:
    """One line on the device of a stage and on its torch; empty for a stage without."""
    if not declared.torch:
        return ""
    import torch

    target = device(execution)
    built = f"torch {torch.__version__} {f'for CUDA {torch.version.cuda}' if torch.version.cuda else 'without CUDA'}"
    if target.type != "cuda":
        return f"{_device_model(target)}, {built}"
    free, total = (f"{size / 2**30:.1f}" for size in torch.cuda.mem_get_info(target))
    capability = ".".join(map(str, torch.cuda.get_device_capability(target)))
    driver = re.search(r"\s(\d+\.\d[\d.]*)\s", DRIVER.read_text()) if DRIVER.exists() else None
    return (
        f"{_device_model(target)}, {free} of {total} GiB free, compute capability {capability}, driver "
        f"{driver[1] if driver else 'unknown'}, {built}"
    )


def without_cuda() -> str:
    """Says, from the files of this Python's torch alone, that it can use no GPU; empty where it may."""
    spec = importlib.util.find_spec("torch")
    folder = Path(spec.origin).parent if spec and spec.origin else Path()
    built_for = re.findall(r"^(?:cuda|hip)\b.*= (.*)$", (folder / "version.py").read_text(), re.M) if spec else []
    if {*built_for} - {"None"}:
        return ""
    return (
        f"execution.device is cuda, and torch {version_of('torch')} in {folder} was built without CUDA: install a "
        "build with CUDA (https://pytorch.org/get-started/locally), or set execution.device=cpu"
    )


def device(execution: Execution) -> Any:
    """The torch device that `execution` asks for; BadInput when it is cuda and there is none."""
    import torch

    if execution.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if execution.device == "cuda" and not torch.cuda.is_available():
        no_gpu = "execution.device is cuda, and torch finds no GPU here: run on a GPU node, or set execution.device=cpu"
        raise BadInput(without_cuda() or no_gpu)
    return torch.device(execution.device)
