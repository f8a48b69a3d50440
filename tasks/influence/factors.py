"""EK-FAC factors of a model on its training examples, one file a module, made durable as each is finished.

For each weight [rows, columns]: the second moments of its two sides, E[a a^T] of inputs and E[g g^T] of output
gradients, summed over positions; their eigenvectors Q; and Lambda = E[(Q_rows^T gradient Q_columns)^2], the best
diagonal in that basis (George et al. 2018, arXiv 1806.03884; for influence Grosse et al. 2023, arXiv 2308.03296). With
labels drawn from the model that is the Fisher information, a Gauss-Newton Hessian of the loss.

A factor is decomposed by a ladder of remedies, each told, and never by identity in silence. Solvers leave a NaN in the
triangle that they do not read, and answer an Inf with NaN and no error: so all of the input must be finite, and the
vectors must give the matrix back.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from tasks.influence import kept
from tasks.influence.kept import ModuleStatistics, Status
from tasks.influence.plan import ModulePlan, Plan
from tasks.influence.task import Task, Told, Use, batches, captured, gradients, require_drawn, require_faithful

Solver = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""A symmetric matrix [n, n] -> eigenvalues [n], eigenvectors [n, n] in columns, as `torch.linalg.eigh`."""
RESIDUAL, JITTERS = 1e-6, (0.0, 1e-8, 1e-7, 1e-6)
"""The most that ||V diag(values) V^T - M|| / ||M|| + ||V^T V - I|| / sqrt(n) (Frobenius) may be (fp64 has 1e-13); what
is added to the diagonal, as multiples of its mean: the eigenvalues are given without it."""
Tensors = dict[str, torch.Tensor]
MEMORY = 1 << 31
"""What a pass over the examples keeps at once, in bytes, beside the model and its activations."""
WORST: tuple[Status, ...] = ("ok", "jittered", "blocks", "one_side", "diagonal", "not_finite")


@dataclass(frozen=True)
class Decomposition:
    """Eigenvalues [n] (ascending, fp64) and eigenvectors [n, n] in columns. `status`: `ok`; `jittered` (right to
    `residual`); `diagonal` (no solver served: the values are the matrix's diagonal, vectors None); `not_finite` (values
    None too). `rungs`: the remedies tried and what became of each."""

    module: str
    status: Status
    values: torch.Tensor | None = None
    vectors: torch.Tensor | None = None
    rungs: list[str] = field(default_factory=list)
    residual: float | None = None


def _scipy(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    from scipy.linalg import eigh  # by relatively robust representations, another algorithm than torch's

    values, vectors = eigh(matrix.cpu().numpy(), driver="evr")
    return torch.from_numpy(values).to(matrix.device), torch.from_numpy(vectors).to(matrix.device)


SOLVERS: Mapping[str, Solver] = {"torch": torch.linalg.eigh, "scipy": _scipy}


def decomposed(matrix: torch.Tensor, module: str, solvers: Mapping[str, Solver] = SOLVERS) -> Decomposition:
    """Decomposes a symmetric `matrix` [n, n]; `module` names it in what is told. The rungs: all of it finite; made
    symmetric, in fp64; the first solver, with more and more jitter; the others; the diagonal."""
    if wrong := int((~matrix.isfinite()).sum()):
        first = [*divmod(int(matrix.isfinite().int().argmin()), len(matrix))]
        return Decomposition(module, "not_finite", rungs=[f"{wrong} values are not finite, the first at {first}"])
    matrix, rungs, (default, *others) = matrix.double(), [], solvers
    size = float(matrix.norm()) or 1.0
    matrix = (matrix + matrix.T) / 2
    for name, jitter in [*((default, jitter) for jitter in JITTERS), *((other, 0.0) for other in others)]:
        shift = jitter * matrix.diagonal().mean()
        try:
            values, vectors = solvers[name](matrix + shift * torch.eye(len(matrix)).to(matrix) if jitter else matrix)
            gram, values = vectors.T @ vectors, values - shift
            gram.diagonal().sub_(1)
            back = ((vectors * values) @ vectors.T - matrix).norm() / size
            residual = float(back + gram.norm() / len(matrix) ** 0.5)
        except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
            rungs.append(f"{name}, jitter {jitter:g}: {type(error).__name__}: {str(error)[:200]}")
            continue
        rungs.append(f"{name}, jitter {jitter:g}: residual {residual:.2g}")
        if residual <= RESIDUAL:
            return Decomposition(module, "jittered" if jitter else "ok", values, vectors, rungs, residual)
    return Decomposition(module, "diagonal", matrix.diagonal().clone(), None, [*rungs, "the diagonal"])


def compute_factors(
    task: Task,
    indices: np.ndarray,
    folder: Path,
    plan: Plan,
    *,
    labels: Literal["sampled", "true"] = "sampled",
    seed: int = 0,
    batch: int = 32,
    memory_bytes: int = MEMORY,
    anew: bool = False,
    told: Told = lambda *_: None,
    solvers: Mapping[str, Solver] = SOLVERS,
) -> list[ModuleStatistics]:
    """The factors of the examples `indices` [N], in `folder`; goes on where a process before it ended.

    `seed` is of the labels drawn from the model. Modules that do not fit `memory_bytes` together take several passes.
    CheckFailed as in `captured` and `require_faithful`; BadInput as in `require_drawn`, and in `begin`, which tells of
    `anew`.
    """
    asked = {"labels": labels, "seed": seed, "batch": batch, "examples": len(indices), "plan": [*map(asdict, plan)]}
    given = {"content": kept.examples_digest(task, indices), "model": kept.model_digest(task.model)}
    kept.begin(folder, asked | given, anew)
    done, device = {item.name: kept.read(folder, item) for item in plan}, next(task.model.parameters()).device

    def at(*steps: str) -> list[ModulePlan]:
        return [item for item in plan if done[item.name].step in steps]

    def write(name: str, tensors: Tensors, **new: object) -> None:
        done[name] = kept.write(folder, done[name], tensors, examples=len(indices), **new)

    def passing(group: list[ModulePlan], what: str) -> Iterator[tuple[ModulePlan, list[Use]]]:
        count = 0
        for part in batches(indices, batch):
            drawn = torch.Generator(device).manual_seed(seed * 1_000_003 + count) if labels == "sampled" else None
            yield from zip(group, captured(task, group, part, drawn), strict=True)
            count += len(part)
            told(count, len(indices), f"examples in {what}")

    if at("planned"):
        if labels == "sampled":
            require_drawn(task, indices[:3])
        require_faithful(task, at("planned"), indices[:3])
    split = [item for item in at("planned") if item.treatment != "diagonal"]
    for group in _groups(split, memory_bytes, lambda m: m.rows * m.row_block + m.columns * m.column_block):
        sums: dict[str, Tensors] = {item.name: {} for item in group}
        for item, uses in passing(group, "second moments"):
            _add_moments(sums[item.name], item, uses)
        for name, found in sums.items():
            write(name, {key: value / len(indices) for key, value in found.items()}, step="moments")
    for number, item in enumerate(waiting := at("moments")):
        tensors, new = _eigen(done[item.name], kept.tensors_of(folder, done[item.name], device), solvers)
        write(item.name, tensors, **new)
        told(number + 1, len(waiting), "modules decomposed")
    for group in _groups(at("planned", "eigen"), memory_bytes, lambda item: 2 * item.rows * item.columns):
        vectors = {item.name: kept.tensors_of(folder, done[item.name], device) for item in group}
        squares: Tensors = {}
        for item, uses in passing(group, "Lambda"):
            squares[item.name] = squares.get(item.name, 0) + _squares(item, uses, vectors[item.name], memory_bytes)
        for name, total in squares.items():
            write(
                name, vectors[name] | {"lambda": total / len(indices)}, step="finished", **_judged(total / len(indices))
            )
    return kept.tidied(folder, [done[item.name] for item in plan])


def _groups(plan: list[ModulePlan], memory_bytes: int, size: Callable[[ModulePlan], int]) -> Iterator[list[ModulePlan]]:
    """The modules in order, as many at a time as have `size` elements in all within the bound; at least one."""
    while plan:
        count = next((n for n in range(1, len(plan)) if 4 * sum(map(size, plan[: n + 1])) > memory_bytes), len(plan))
        yield plan[:count]
        plan = plan[count:]


def _eigen(done: ModuleStatistics, matrices: Tensors, solvers: Mapping[str, Solver]) -> tuple[Tensors, dict[str, Any]]:
    """The eigenvectors of a module's sides by block, and what becomes of its statistics."""
    sides = {key: decomposed(matrix, f"{done.name} {key}", solvers) for key, matrix in matrices.items()}
    status = max([done.status, *(side.status for side in sides.values())], key=WORST.index)
    worse, step = status in ("diagonal", "not_finite"), "finished" if status == "not_finite" else "eigen"
    new = {"step": step, "status": status, "degraded": done.degraded or worse}
    vectors = {key: side.vectors.to(matrices[key]) for key, side in sides.items() if side.vectors is not None}
    return vectors, new | {
        "sides": [{"module": side.module, "status": side.status, "rungs": side.rungs} for side in sides.values()]
    }


def _judged(curvature: torch.Tensor) -> dict[str, Any]:
    """Statistics of a module's Lambda. One so small that squares lose their digits, as of a dead layer or a saturated
    model, has no inverse: 0 / 0 would be the score of every row."""
    mean, limits = float(curvature.mean()), torch.finfo(curvature.dtype)
    if not np.isfinite(mean):
        return {"status": "not_finite", "degraded": True}
    none = {"status": "no_curvature", "degraded": True} if mean < limits.tiny / limits.eps else {}
    return {"mean_lambda": mean} | none


def _add_moments(sums: Tensors, item: ModulePlan, uses: list[Use]) -> None:
    for module, *sides in uses:
        for side, block, values in zip(("rows", "columns"), (item.row_block, item.column_block), sides, strict=True):
            if block > 1 and module == item.name:  # of tied weights the first one's sides make the basis
                for number, part in enumerate(values.flatten(0, 1).split(block, 1)):
                    sums[f"{side}.{number}"] = sums.get(f"{side}.{number}", 0) + part.T @ part


def _squares(item: ModulePlan, uses: list[Use], vectors: Tensors, memory_bytes: int) -> torch.Tensor:
    """The sum over the examples of the squared gradient in the module's bases, [rows, columns]."""
    (high, wide), (name, left, right) = (item.rows, item.columns), uses[0]
    if len(uses) == 1 and left.shape[1] * (high**2 + wide**2) < high * wide * (high + wide):  # cheaper than the product
        left = _turned(left, "rows", item.row_block, vectors)
        right = _turned(right, "columns", item.column_block, vectors)
        if left.shape[1] == 1:
            return left[:, 0].square().T @ right[:, 0].square()
        uses, vectors = [(name, left, right)], {}
    return sum(turned(some, item, vectors).square().sum(0) for some in gradients(uses, memory_bytes))


def turned(values: torch.Tensor, item: ModulePlan, vectors: Tensors, back: bool = False) -> torch.Tensor:
    """Gradients [B, rows, columns] in a module's two bases, or back from them."""
    for side, block in (("columns", item.column_block), ("rows", item.row_block)):
        values = _turned(values, side, block, vectors, back).transpose(1, 2)
    return values


def _turned(values: torch.Tensor, side: str, block: int, vectors: Tensors, back: bool = False) -> torch.Tensor:
    """Coordinates [..., n] in a side's basis, or back from it, by block; a block without eigenvectors stays."""
    if not any(key.startswith(side) for key in vectors):
        return values
    by = [(part, vectors.get(f"{side}.{number}")) for number, part in enumerate(values.split(block, -1))]
    return torch.cat([part if of is None else part @ (of.T if back else of) for part, of in by], -1)
