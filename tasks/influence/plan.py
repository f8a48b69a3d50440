"""The factor plan: dimensions, bytes, time and treatment of every module, before any work.

It needs no weights (`with torch.device("meta")` builds the model in seconds) and no machine but in words, so that a run
on another one can be planned. An earlier system died three times at the last of 145 matrices, 32,128 x 32,128, which
its GPU could not have solved at all: up to CUDA 12 cuSOLVER refuses such sizes when asked for a work space
(pomonam/kronfluence#42), and CUDA 13 solves it with 49.6 GB, which that card did not have.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Literal

import torch
from torch import nn

from storage.errors import BadInput

Strategy = Literal["ekfac", "diagonal", "identity"]
Treatment = Literal["ekfac", "blocks", "diagonal", "excluded"]

KINDS: dict[type[nn.Module], str] = {nn.Linear: "linear", nn.Conv2d: "convolution", nn.Embedding: "embedding"}
SOLVER_BYTES = 48
"""Of memory an element of a matrix that is solved in fp64: measured on a GPU (49.6 GB at 32,128, 12.9 at 16,384)."""
CPU_SECONDS, GPU_SECONDS = (3_000, 8.3, 3.0), (32_128, 25.2, 2.8)
"""Measured eigendecompositions in fp64: dimension, seconds, and the power by which they grow. 2 CPU cores; an H100."""
CUSOLVER_12_LIMIT = 23_000
"""Up to CUDA 12 cuSOLVER's bufferSize call refuses larger ones (reports begin at 25,000)."""
SMALLEST_BLOCK = 64
"""Blocks below this keep next to nothing of a factor: the diagonal says so more honestly."""


@dataclass(frozen=True)
class Machine:
    """Where factors are computed: `cuda` is CUDA's version such as (12, 2), None on a CPU.

    `solves` is the largest dimension that its solver was seen to take, where that is known better than by version.
    """

    memory_bytes: int
    cuda: tuple[int, int] | None = None
    solves: int | None = None

    def seconds(self, dimension: int) -> float:
        """An estimate of one eigendecomposition in fp64."""
        measured, seconds, power = CPU_SECONDS if self.cuda is None else GPU_SECONDS
        return seconds * (dimension / measured) ** power


@dataclass(frozen=True)
class Limits:
    """What a plan may spend, and on what.

    `seconds` bound one eigendecomposition. `kinds` are those of KINDS; `exclude` are patterns of module names such as
    `*.relative_attention_bias`, left out on purpose.
    """

    strategy: Strategy = "ekfac"
    seconds: float = 30.0
    kinds: tuple[str, ...] = ("linear", "convolution", "embedding")
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModulePlan:
    """One weight [rows, columns] and what becomes of it; a bias is one more column.

    `modules` are the names of all that use the weight: tied ones are one entry, named after the first linear one.
    `row_block`, `column_block` are the sizes of the blocks whose eigenvectors are computed: the whole dimension, less,
    or 1 for none. `bytes` is the most memory at once, `seconds` both eigendecompositions. `chosen` says that the
    treatment was asked for, and not forced by the machine.
    """

    name: str
    kind: str
    modules: tuple[str, ...]
    rows: int
    columns: int
    row_block: int
    column_block: int
    bytes: int
    seconds: float
    treatment: Treatment
    why: str
    chosen: bool = True


def this_machine(device: torch.device | str, dimension: int = 0) -> Machine:
    """The real machine. On a GPU a `dimension` above the known limit is tried once, to see whether it is solved."""
    device = torch.device(device)
    if device.type != "cuda":
        return Machine(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    major, minor = map(int, str(torch.version.cuda).split(".")[:2])
    memory, solves = torch.cuda.get_device_properties(device).total_memory, None
    if dimension > CUSOLVER_12_LIMIT and SOLVER_BYTES * dimension**2 <= memory:
        try:
            torch.linalg.eigh(torch.eye(dimension, dtype=torch.float64, device=device))
            solves = dimension
        except RuntimeError:
            solves = CUSOLVER_12_LIMIT
    return Machine(memory, (major, minor), solves)


def factor_plan(model: nn.Module, machine: Machine, limits: Limits = Limits()) -> list[ModulePlan]:
    """The plan of every weight that influence can be computed for, in the order of the model's modules."""
    uses: dict[int, list[tuple[str, nn.Module]]] = {}
    for name, module in model.named_modules():
        if _kind(module):
            uses.setdefault(id(module.weight), []).append((name, module))
    if not uses:
        raise BadInput(f"the model {type(model).__name__} has no module of {', '.join(KINDS.values())}")
    return [
        _planned(sorted(same, key=lambda use: _kind(use[1]) != "linear"), machine, limits) for same in uses.values()
    ]


def _kind(module: nn.Module) -> str:
    return next((kind for type_, kind in KINDS.items() if isinstance(module, type_)), "")


def _planned(uses: list[tuple[str, nn.Module]], machine: Machine, limits: Limits) -> ModulePlan:
    (name, module), names = uses[0], tuple(name for name, _ in uses)
    kind, weight = _kind(module), module.weight
    rows, columns = len(weight), weight[0].numel() + with_bias(module, tied=len(uses) > 1)
    plan = ModulePlan(name, kind, names, rows, columns, 1, 1, 12 * rows * columns, 0.0, "diagonal", "as asked")
    if kind not in limits.kinds:
        return replace(plan, treatment="excluded", why=f"{kind} is not among the kinds asked for")
    if any(fnmatch(each, pattern) for each in names for pattern in limits.exclude):
        return replace(plan, treatment="excluded", why="excluded by name")
    if getattr(module, "groups", 1) > 1:
        return replace(plan, treatment="excluded", why="a grouped convolution has no factors of this form")
    if plan.bytes > machine.memory_bytes:
        why = (
            f"one example's gradient and its square need {plan.bytes / 1e9:.1f} of {machine.memory_bytes / 1e9:.0f} GB"
        )
        return replace(plan, treatment="excluded", why=why, chosen=False)
    if limits.strategy != "ekfac":
        return plan
    row_block, why_rows = (1, "") if kind == "embedding" else _block(rows, machine, limits.seconds)
    column_block, why_columns = _block(columns, machine, limits.seconds)
    solved = [size for size, block in ((rows, row_block), (columns, column_block)) for size in _sizes(size, block)]
    whole = column_block == columns and (row_block == rows or kind == "embedding")
    return replace(
        plan,
        row_block=row_block,
        column_block=column_block,
        bytes=max([plan.bytes, *(SOLVER_BYTES * size**2 for size in solved)]),
        seconds=sum(map(machine.seconds, solved)),
        treatment="ekfac" if whole else "diagonal" if not solved else "blocks",
        why=why_rows or why_columns or "fits" + ", tokens are a diagonal factor already" * (kind == "embedding"),
        chosen=whole,
    )


def with_bias(module: nn.Module, tied: bool) -> bool:
    """Whether the module's bias counts as one more column of its weight."""
    return getattr(module, "bias", None) is not None and not tied


def _sizes(dimension: int, block: int) -> list[int]:
    return [] if block <= 1 else [min(block, dimension - first) for first in range(0, dimension, block)]


def _block(dimension: int, machine: Machine, seconds: float) -> tuple[int, str]:
    """The largest equal blocks of a dimension that the machine solves, and why they are not the whole."""
    known = machine.solves or (CUSOLVER_12_LIMIT if machine.cuda and machine.cuda < (13, 0) else dimension)
    memory = int((machine.memory_bytes / SOLVER_BYTES) ** 0.5)
    measured, one, power = CPU_SECONDS if machine.cuda is None else GPU_SECONDS
    within = int(measured * (seconds / one) ** (1 / power))
    most = min(known, memory, within)
    if dimension <= most:
        return dimension, ""
    reason = {
        known: f"cuSOLVER of CUDA {'.'.join(map(str, machine.cuda or ()))} takes at most {known:,}",
        memory: f"solving it needs {SOLVER_BYTES * dimension**2 / 1e9:.1f} of {machine.memory_bytes / 1e9:.0f} GB",
        within: f"solving it would take {machine.seconds(dimension):,.0f} s, {seconds:g} are allowed",
    }[most]
    if most < SMALLEST_BLOCK:
        return 1, f"{dimension:,}: {reason}; and blocks of {most} would be too small"
    block = -(-dimension // -(-dimension // most))
    return block, f"{dimension:,} in blocks of {block:,}: {reason}"


def markdown(plan: Sequence[ModulePlan]) -> str:
    """The plan as a Markdown table."""
    lines = ["| module | kind | weight | memory, GB | eigen, s | treatment | why |", "|---|---|---|---|---|---|---|"]
    for one in plan:
        name = one.name + f" (+ {', '.join(one.modules[1:])})" * (len(one.modules) > 1)
        lines.append(
            f"| {name} | {one.kind} | {one.rows:,} x {one.columns:,} | {one.bytes / 1e9:.3f} | {one.seconds:.1f} | "
            f"{one.treatment} | {one.why} |"
        )
    return "\n".join(lines) + "\n"
