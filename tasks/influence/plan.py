"""The factor plan: dimensions, bytes, time and treatment of every module, before any work and without any weights. An
earlier system died three times at the last of 145 matrices, 32,128 x 32,128: cuSOLVER of CUDA 12 refuses it when asked
for a work space (pomonam/kronfluence#42), and that of CUDA 13 needs more memory for it than that GPU had."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Literal

import torch
from torch import nn

from storage.errors import BadInput

KINDS: dict[type, str] = {nn.Linear: "linear", nn.Embedding: "embedding"}
CPU_TIME, GPU_TIME = (3_000, 8.3, 3.0), (32_128, 25.2, 2.8)
"""Measured solutions in fp64: dimension, seconds, and the power by which they grow. 2 CPU cores; an H100, CUDA 13."""
SOLVER_BYTES, CUSOLVER_12_TAKES, SMALLEST_BLOCK = 48, 23_000, 64
"""Memory an element (49.6 GB at 32,128 on that H100); refusals are reported from 25,000; less is called diagonal."""


@dataclass(frozen=True)
class Machine:
    """Where factors are computed: CUDA's version such as (12, 2), None on a CPU; the largest dimension that its solver
    takes, where that is known better than by the version."""

    memory_bytes: int
    cuda: tuple[int, ...] | None = None
    solves: int | None = None


@dataclass(frozen=True)
class Limits:
    """`seconds` bound one eigendecomposition; `kinds` are of KINDS; `exclude` are patterns of module names. `batch`
    examples at once are padded to `positions`, as the task makes them, where the plan is to count their memory."""

    seconds: float = 30.0
    kinds: Sequence[str] = ("linear", "embedding")
    exclude: Sequence[str] = ()
    batch: int = 32
    positions: int = 0


@dataclass(frozen=True)
class ModulePlan:
    """One weight [rows, columns] and what becomes of it. A `bias` is one more column, unless other `modules` use the
    weight too: tied ones are one entry, named after the first linear one. Blocks of these sizes are decomposed: the
    whole dimension, less, or 1 for none. `bytes` is the most memory at once. `chosen`: not forced by the machine."""

    name: str
    kind: str
    modules: Sequence[str]
    rows: int
    columns: int
    bias: bool
    bytes: int
    row_block: int = 1
    column_block: int = 1
    seconds: float = 0.0
    treatment: Literal["ekfac", "blocks", "diagonal", "excluded"] = "diagonal"
    why: str = "as asked"
    chosen: bool = True

    @property
    def one_side(self) -> bool:
        """Only one of two sides is decomposed. Tokens are one-hot, so that of an embedding is its diagonal."""
        sides = [(self.columns, self.column_block), *[(self.rows, self.row_block)] * (self.kind != "embedding")]
        return self.treatment == "blocks" and any(block == 1 < size for size, block in sides)


Plan = Sequence[ModulePlan]


def this_machine(device: torch.device | str) -> Machine:
    """The real machine."""
    if torch.device(device).type != "cuda":
        return Machine(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    memory, version = torch.cuda.get_device_properties(device).total_memory, str(torch.version.cuda).split(".")
    return Machine(memory, (int(version[0]), int(version[1])))


def factor_plan(model: nn.Module, machine: Machine, limits: Limits = Limits()) -> list[ModulePlan]:
    """The plan of every weight of a known kind, in the order of the model's modules."""
    uses: dict[int, list[tuple[str, nn.Module]]] = {}
    known = [(name, module) for name, module in model.named_modules() if type(module) in KINDS]
    for name, module in sorted(known, key=lambda use: type(use[1]) is not nn.Linear):
        uses.setdefault(id(module.weight), []).append((name, module))
    ordered = sorted(uses.values(), key=lambda same: known.index(same[0]))
    plan = [_planned(same, machine, limits) for same in ordered]
    for name, module in model.named_modules():
        for own, weight in module.named_parameters(recurse=False):
            if type(module) not in KINDS and weight.dim() > 1:
                plan.append(_unknown(f"{name}.{own}".lstrip("."), type(module).__name__, weight, limits))
    if all(item.treatment == "excluded" for item in plan):
        kinds = f"{', '.join(limits.kinds)} (there are {', '.join(KINDS.values())})"
        raise BadInput(
            f"{type(model).__name__} has no module to compute influence by, of the kinds {kinds}:\n{markdown(plan)}"
        )
    return plan


def _unknown(name: str, kind: str, weight: nn.Parameter, limits: Limits) -> ModulePlan:
    """A weight of no known module, of GPT-2's Conv1D for example: told, and not left out in silence."""
    chosen, columns = any(fnmatch(name, pattern) for pattern in limits.exclude), weight[0].numel()
    why = "as asked" if chosen else f"no factors of a {kind}"
    return ModulePlan(name, kind, [name], len(weight), columns, False, 0, treatment="excluded", why=why, chosen=chosen)


def _planned(uses: list[tuple[str, nn.Module]], machine: Machine, limits: Limits) -> ModulePlan:
    module, names = uses[0][1], [name for name, _ in uses]
    kind, bias = KINDS[type(module)], getattr(module, "bias", None) is not None and len(uses) == 1
    rows, columns = len(module.weight), module.weight[0].numel() + bias
    held = 4 * limits.batch * limits.positions * (rows + columns)
    plan = ModulePlan(names[0], kind, names, rows, columns, bias, 12 * rows * columns + held)
    if kind not in limits.kinds or any(fnmatch(name, pattern) for name in names for pattern in limits.exclude):
        return replace(plan, treatment="excluded")
    if plan.bytes > machine.memory_bytes:
        beside = f", a sum and {limits.batch} x {limits.positions:,} positions" if held else " and a sum"
        why = f"a gradient, Lambda{beside} need {plan.bytes / 1e9:.1f} GB of {machine.memory_bytes / 1e9:.1f}"
        return replace(plan, treatment="excluded", why=why, chosen=False)
    one_hot = "tokens are a diagonal factor" + f", and one-hot in a batch: {held / 1e9:.1f} GB" * bool(held)
    of_rows, why_rows = (1, one_hot) if kind == "embedding" else _block(rows, machine, limits)
    of_columns, why_columns = _block(columns, machine, limits)
    whole = of_columns == columns and (of_rows == rows or kind == "embedding")
    solved = [block for n, block in ((rows, of_rows), (columns, of_columns)) if block > 1 for _ in range(0, n, block)]
    return replace(
        plan,
        row_block=of_rows,
        column_block=of_columns,
        bytes=max([plan.bytes, *(SOLVER_BYTES * block**2 for block in solved)]),
        seconds=sum(_seconds(block, machine) for block in solved),
        treatment="ekfac" if whole else "blocks" if solved else "diagonal",
        why="; ".join(each for each in (why_rows, why_columns) if each) or "fits",
        chosen=whole,
    )


def _seconds(dimension: int, machine: Machine) -> float:
    measured, seconds, power = GPU_TIME if machine.cuda else CPU_TIME
    return seconds * (dimension / measured) ** power


def _block(dimension: int, machine: Machine, limits: Limits) -> tuple[int, str]:
    """The largest equal blocks of a dimension that the machine solves, and why they are not the whole."""
    takes = machine.solves or (CUSOLVER_12_TAKES if machine.cuda and machine.cuda < (13, 0) else dimension)
    needs = f"it needs {SOLVER_BYTES * dimension**2 / 1e9:.1f} GB of {machine.memory_bytes / 1e9:.1f}"
    seconds, power = _seconds(dimension, machine), (GPU_TIME if machine.cuda else CPU_TIME)[2]
    most, why = min(
        (takes, f"cuSOLVER takes at most {takes:,} here"),
        (int((machine.memory_bytes / SOLVER_BYTES) ** 0.5), needs),
        (int(dimension * (limits.seconds / seconds) ** (1 / power)), f"{seconds:,.0f} s at once"),
    )
    if dimension <= most:
        return dimension, ""
    if most < SMALLEST_BLOCK:
        return 1, f"{dimension:,} not decomposed: {why}"
    block = -(-dimension // -(-dimension // most))
    return block, f"{dimension:,} in blocks of {block:,}: {why}"


def markdown(plan: Plan) -> str:
    """The plan as a Markdown table."""
    head = "| module | kind | weight | memory, GB | eigen, s | treatment | why |\n|---|---|---|---|---|---|---|\n"
    return head + "".join(
        f"| {', '.join(item.modules)} | {item.kind} | {item.rows:,} x {item.columns:,} | {item.bytes / 1e9:.3f} "
        f"| {item.seconds:.1f} | {item.treatment} | {item.why} |\n"
        for item in plan
    )
