"""EK-FAC factors of a model on its training examples, one file a module, made durable as each is finished.

For each weight [rows, columns]: the second moments of its two sides over all positions, A = E[a a^T] and G = E[g g^T];
their eigenvectors; and Lambda [rows, columns] = E[(Q_rows^T gradient Q_columns)^2] over the examples, the best diagonal
in that basis (George et al. 2018, arXiv 1806.03884; for influence Grosse et al. 2023, arXiv 2308.03296). With labels
drawn from the model it approximates the Fisher information, and so the Gauss-Newton Hessian of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from storage import durable
from storage.errors import require_equal, require_limit
from tasks.influence import kept
from tasks.influence.capture import Use, captured, gradient_alone, parts_of, summed
from tasks.influence.decomposition import SOLVERS, Solver, Status, decomposed
from tasks.influence.kept import ModuleStatistics
from tasks.influence.plan import ModulePlan
from tasks.influence.task import Task, batches

Told = Callable[[str, int, int], None]
"""Called with what is done, how many of them are, of how many; may raise to stop, and nothing made durable is lost."""
MEMORY = 1 << 31
"""What a pass over the examples keeps at once, in bytes, beside the model and its activations."""
WORST: tuple[Status, ...] = ("ok", "jittered", "diagonal", "not_finite")


@dataclass(frozen=True)
class Basis:
    """An orthonormal basis in blocks: a slice of the dimension, and eigenvectors in columns; None for unit vectors."""

    blocks: Sequence[tuple[slice, torch.Tensor | None]]

    @classmethod
    def of(cls, dimension: int, block: int, vectors: Mapping[str, torch.Tensor], side: str) -> Basis:
        """From the tensors `<side>.<block's number>` of a module's file."""
        if block == 1:
            return cls([(slice(None), None)])
        firsts = enumerate(range(0, dimension, block))
        return cls([(slice(first, first + block), vectors.get(f"{side}.{number}")) for number, first in firsts])

    def into(self, values: torch.Tensor, back: bool = False) -> torch.Tensor:
        """Coordinates [..., n] in this basis, or from it."""
        if all(vectors is None for _, vectors in self.blocks):
            return values
        turned = [values[..., at] if by is None else values[..., at] @ (by.T if back else by) for at, by in self.blocks]
        return turned[0] if len(turned) == 1 else torch.cat(turned, -1)


def bases_of(one: ModulePlan, tensors: Mapping[str, torch.Tensor]) -> tuple[Basis, Basis]:
    """The bases of a module's rows and columns."""
    rows = Basis.of(one.rows, one.row_block, tensors, "rows")
    return rows, Basis.of(one.columns, one.column_block, tensors, "columns")


def turned(gradients: torch.Tensor, rows: Basis, columns: Basis, back: bool = False) -> torch.Tensor:
    """Gradients [B, rows, columns] in the two bases, or from them."""
    return rows.into(columns.into(gradients, back).transpose(1, 2), back).transpose(1, 2)


def compute_factors(
    task: Task,
    indices: np.ndarray,
    folder: Path,
    plan: Sequence[ModulePlan],
    *,
    labels: Literal["sampled", "true"] = "sampled",
    seed: int = 0,
    batch: int = 32,
    memory_bytes: int = MEMORY,
    told: Told = lambda *_: None,
    solvers: Mapping[str, Solver] = SOLVERS,
) -> list[ModuleStatistics]:
    """The factors of the examples `indices` [N], in `folder`; goes on where a process before it ended.

    `seed` is of the labels drawn from the model. Modules that do not fit `memory_bytes` together are done in several
    passes. CheckFailed where a module sees other examples than planned, where an example's gradient in a batch is not
    that of it alone, or where a loss is not finite; BadInput where the folder has factors of something else.
    """
    asked = {"labels": labels, "seed": seed, "batch": batch, "indices": durable.sha256_json([*map(int, indices)])}
    kept.begin(
        folder, asked | {"examples": len(indices), "plan": [*map(asdict, plan)], "model": kept.model_digest(task.model)}
    )
    done = {one.name: kept.read(folder, one) for one in plan}

    def at(*steps: str) -> list[ModulePlan]:
        return [one for one in plan if done[one.name].step in steps]

    for one in at("planned"):
        if one.treatment == "excluded":
            done[one.name] = kept.write(folder, replace(done[one.name], step="finished", status="excluded"), {})
    if at("planned"):
        require_faithful(task, at("planned"), indices[:3])
    run = _Passes(task, indices, labels == "sampled", seed, batch, memory_bytes, told)
    for group in _groups([one for one in at("planned") if one.treatment != "diagonal"], _moment_bytes, memory_bytes):
        for one, found, counts in run.moments(group):
            done[one.name] = kept.write(folder, replace(done[one.name], step="moments", **counts), found)
    for number, one in enumerate(waiting := at("moments")):
        done[one.name] = _decompose(folder, one, done[one.name], run.device, solvers)
        told("modules decomposed", number + 1, len(waiting))
    for group in _groups(at("planned", "eigen"), lambda one: 8 * one.rows * one.columns, memory_bytes):
        tensors = {one.name: kept.tensors_of(folder, done[one.name], run.device) for one in group}
        for one, mean, counts in run.squares(group, tensors):
            new = replace(done[one.name], step="finished", mean_lambda=float(mean.mean()), **counts)
            if not bool(mean.isfinite().all()):
                new = replace(new, status="not_finite", degraded=True, mean_lambda=None)
            done[one.name] = kept.write(folder, new, tensors[one.name] | {"lambda": mean})
    return [done[one.name] for one in plan]


def require_faithful(task: Task, plan: Sequence[ModulePlan], indices: np.ndarray, tolerance: float = 1e-3) -> None:
    """CheckFailed unless each example's gradient, taken by hooks in one batch, is autograd's of it alone.

    That finds padding that is read, examples that mix, weights used past their module, and rows that are no examples.
    """
    together = captured(task, plan, indices)
    for row, index in enumerate(indices):
        alone = gradient_alone(task, plan, indices[row : row + 1])
        largest = max(float(gradient.norm()) for gradient in alone.values())
        for name, gradient in alone.items():
            ours = summed(together[name])[row][:, : gradient.shape[1]] if together[name] else torch.zeros_like(gradient)
            require_limit(
                f"the gradient of example {index} by {name}, in a batch beside alone: relative difference",
                float((ours - gradient).norm()) / (max(float(gradient.norm()), 1e-3 * largest) or 1.0),
                tolerance,
                advice="Padding is read, or examples mix, or the weight is used past its module (then exclude it)",
            )


def _moment_bytes(one: ModulePlan) -> int:
    return 4 * (one.rows * one.row_block + one.columns * one.column_block)


def _groups(plan: list[ModulePlan], size: Callable[[ModulePlan], int], most: int) -> Iterator[list[ModulePlan]]:
    """The modules in order, as many at a time as keep within `most` bytes; at least one."""
    group: list[ModulePlan] = []
    for one in plan:
        if group and sum(map(size, [*group, one])) > most:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


@dataclass(frozen=True)
class _Passes:
    """The two kinds of pass over the examples, for a group of modules."""

    task: Task
    indices: np.ndarray
    sampled: bool
    seed: int
    batch: int
    memory_bytes: int
    told: Told

    @property
    def device(self) -> torch.device:
        return next(self.task.model.parameters()).device

    def moments(self, group: list[ModulePlan]) -> Iterator[tuple[ModulePlan, dict[str, torch.Tensor], dict[str, Any]]]:
        """E[a a^T] and E[g g^T] of each module over its real positions, by block."""
        sums: dict[str, dict[str, torch.Tensor]] = {one.name: {} for one in group}
        counts = {one.name: {"examples": 0, "positions": 0} for one in group}
        for one, uses in self._uses(group, "batches of second moments", counts):
            for use in uses:
                if use.left.is_floating_point() == (one.kind != "embedding"):  # of tied weights the first one's sides
                    counts[one.name]["positions"] += use.add_moments(sums[one.name], one.row_block, one.column_block)
        for one in group:
            self._require_all(one, counts)
            yield (
                one,
                {key: value / counts[one.name]["positions"] for key, value in sums[one.name].items()},
                counts[one.name],
            )

    def squares(
        self, group: list[ModulePlan], tensors: dict[str, dict[str, torch.Tensor]]
    ) -> Iterator[tuple[ModulePlan, torch.Tensor, dict[str, Any]]]:
        """Lambda of each module, [rows, columns]."""
        counts = {one.name: {"examples": 0} for one in group}
        bases = {one.name: bases_of(one, tensors[one.name]) for one in group}
        sums = {one.name: torch.zeros(one.rows, one.columns, device=self.device) for one in group}
        for one, uses in self._uses(group, "batches of Lambda", counts):
            _add_squares(sums[one.name], uses, *bases[one.name], self.memory_bytes)
        for one in group:
            self._require_all(one, counts)
            yield one, sums[one.name] / len(self.indices), counts[one.name]

    def _uses(
        self, group: list[ModulePlan], what: str, counts: dict[str, dict[str, Any]]
    ) -> Iterator[tuple[ModulePlan, list[Use]]]:
        """The uses of each module by each batch; counts the examples whose gradient reached it."""
        parts = batches(self.indices, self.batch)
        for number, part in enumerate(parts):
            generator = (
                torch.Generator(self.device).manual_seed(self.seed * 1_000_003 + number) if self.sampled else None
            )
            found = captured(self.task, group, part, generator)
            for one in group:
                if found[one.name]:
                    counts[one.name]["examples"] += len(part)
                    yield one, found[one.name]
            self.told(what, number + 1, len(parts))

    def _require_all(self, one: ModulePlan, counts: dict[str, dict[str, Any]]) -> None:
        advice = "No gradient reached it from the others: exclude the module, or see why"
        require_equal(f"examples counted in {one.name}", counts[one.name]["examples"], len(self.indices), advice)


def _add_squares(total: torch.Tensor, uses: list[Use], rows: Basis, columns: Basis, memory_bytes: int) -> None:
    """Adds the sum over the examples of the squared gradient in the two bases, [rows, columns]."""
    (high, wide), use = total.shape, uses[0]
    length = use.right.shape[1]
    first = len(uses) == 1 and length * (high**2 + wide**2) < high * wide * (high + wide)  # cheaper before the product
    if first:
        left = rows.into(use.left) if use.left.is_floating_point() else use.left
        use = replace(use, left=left, right=columns.into(use.right))
        if length == 1 and left.is_floating_point():
            total += use.left[:, 0].square().T @ use.right[:, 0].square()
            return
    for part in parts_of([use] if first else uses, total.numel(), memory_bytes):
        gradients = summed(part)
        total += (gradients if first else turned(gradients, rows, columns)).square().sum(0)


def _decompose(
    folder: Path, one: ModulePlan, done: ModuleStatistics, device: torch.device, solvers: Mapping[str, Solver]
) -> ModuleStatistics:
    """The eigenvectors of all blocks of both sides, made durable."""
    tensors = kept.tensors_of(folder, done, device)
    found = {key: decomposed(matrix, f"{one.name} {key}", solvers) for key, matrix in tensors.items()}
    status: Status = max((each.status for each in found.values()), key=WORST.index, default="ok")
    new = replace(
        done,
        step="finished" if status == "not_finite" else "eigen",
        status=status,
        degraded=done.degraded or status in ("diagonal", "not_finite"),
        sides=[each.told() for each in found.values()],
    )
    return kept.write(
        folder, new, {key: each.vectors.float() for key, each in found.items() if each.vectors is not None}
    )
