"""Influence of training examples on queries: gradient(query)^T (Lambda + damping)^-1 gradient(example). The higher, the
more a training example lowers the query's loss."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.errors import BadInput, require
from tasks.influence import kept
from tasks.influence.factors import MEMORY, turned
from tasks.influence.plan import Plan
from tasks.influence.task import Task, Told, batches, captured, gradients

Block = tuple[np.ndarray, np.ndarray, torch.Tensor]  # rows of scores and training examples by index, scores [rows, N]


def scores(
    train: Task,
    queries: Task,
    train_indices: np.ndarray,
    query_indices: np.ndarray | Sequence[np.ndarray],
    factors: Path | Plan,
    *,
    damping: float | None = None,
    batch: int = 32,
    memory_bytes: int = MEMORY,
    told: Told = lambda *_: None,
) -> Iterator[Block]:
    """The scores in blocks: some queries, and for these all training examples batch by batch, with true labels.

    `train` and `queries` share the model. `query_indices` are an array, with a row of scores for each query, or arrays,
    with a row for the mean of each: many queries then cost little more than one. `factors` is the folder of finished
    ones, or a plan: then there is no curvature (the strategy `identity`). `damping` is added to Lambda; None: 0.1 of
    its mean, module by module. As many rows at once are held as `memory_bytes` allow: each is a gradient of the whole
    model. `told` is as in `compute_factors`. CheckFailed names the module by which a score is not finite.
    """
    if train.model is not queries.model:
        raise BadInput("the queries' task has another model than the training examples': give both the same object")
    plan, statistics = kept.complete(factors, train.model) if isinstance(factors, Path) else (factors, [])
    done, half = {each.name: each for each in statistics}, memory_bytes // 2
    unusable = {each.name: each.status for each in statistics if each.status in kept.ModuleStatistics.UNUSABLE}
    plan = [item for item in plan if item.treatment != "excluded" and item.name not in unusable]
    advice = ", ".join(f"{name}: {status}" for name, status in unusable.items())
    require(plan, "modules with usable factors", 0, "at least 1", advice[:200])
    device, size = next(train.model.parameters()).device, 4 * sum(item.rows * item.columns for item in plan)
    means = not isinstance(query_indices, np.ndarray)
    rows = np.arange(len(query_indices)) if means else np.asarray(query_indices)
    count, parts_of = 0, batches(rows, max(1, half // size))
    for some in parts_of:
        if means:
            parts = [_mean(queries, plan, query_indices[row], batch) for row in some]
        else:
            by_part = (captured(queries, plan, part) for part in batches(some, batch))
            parts = [[torch.cat([*gradients(uses, half)]) for uses in of_weights] for of_weights in by_part]
        wanted = [torch.cat(each) for each in zip(*parts, strict=True)]
        for at, item in enumerate(plan if isinstance(factors, Path) else ()):
            tensors = kept.tensors_of(factors, done[item.name], device)  # type: ignore[arg-type]
            curvature = tensors["lambda"] + (0.1 * tensors["lambda"].mean() if damping is None else damping)
            wanted[at] = turned(turned(wanted[at], item, tensors) / curvature, item, tensors, back=True)
        for part in batches(train_indices, batch):
            products = (
                torch.cat([asked.flatten(1) @ of.flatten(1).T for of in gradients(uses, half)], 1)
                for asked, uses in zip(wanted, captured(train, plan, part), strict=True)
            )
            by_module = torch.stack([*products])
            wrong = [item.name for item, of in zip(plan, by_module, strict=True) if not of.isfinite().all()]
            what = f"scores of queries {some[0]} to {some[-1]} by examples {part[0]} to {part[-1]}"
            advice = "Exclude these modules, or take another damping"
            require(not wrong, what, f"not finite by {', '.join(wrong[:10])}", "finite", advice)
            yield some, part, by_module.sum(0).cpu()
            count += len(part)
            told(count, len(parts_of) * len(train_indices), "training examples")


def _mean(queries: Task, plan: Plan, indices: np.ndarray, batch: int) -> list[torch.Tensor]:
    """The mean gradient of these queries by each weight, [1, rows, columns]."""
    total: list[Any] = [0.0] * len(plan)  # one gradient of the whole model, however many queries there are
    for part in batches(indices, batch):
        for at, uses in enumerate(captured(queries, plan, part)):
            total[at] += sum(left.flatten(0, 1).T @ right.flatten(0, 1) for _, left, right in uses)
    return [each[None] / len(indices) for each in total]


def gathered(blocks: Iterable[Block]) -> torch.Tensor:
    """All blocks as one [Q, N]."""
    rows: dict[bytes, list[torch.Tensor]] = {}
    for queries, _, scores in blocks:
        rows.setdefault(queries.tobytes(), []).append(scores)
    return torch.cat([torch.cat(parts, 1) for parts in rows.values()])
