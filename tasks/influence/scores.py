"""Influence of training examples on queries: gradient(query)^T (Lambda + damping)^-1 gradient(example).

The higher, the more a training example lowers the query's loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from storage.errors import BadInput
from tasks.influence import kept
from tasks.influence.factors import MEMORY, both_turned
from tasks.influence.plan import Plan
from tasks.influence.task import Task, captured, gradients


class Block(NamedTuple):
    """Scores [Q, N] of some queries and some training examples, by their indices."""

    queries: np.ndarray
    train: np.ndarray
    scores: torch.Tensor


def scores(
    train: Task,
    queries: Task,
    train_indices: np.ndarray,
    query_indices: np.ndarray,
    factors: Path | Plan,
    *,
    damping: float | None = None,
    batch: int = 32,
    memory_bytes: int = MEMORY,
) -> Iterator[Block]:
    """The scores in blocks: some queries, and for these all training examples batch by batch, with true labels.

    `train` and `queries` share the model. `factors` is the folder of finished ones, or a plan: then there is no
    curvature (the strategy `identity`). `damping` is added to Lambda; None: 0.1 of its mean, module by module. As many
    queries at once are held as `memory_bytes` allow: each is a gradient of the whole model.
    """
    if train.model is not queries.model:
        raise BadInput("the queries' task has another model than the training examples': give both the same object")
    plan, found = kept.complete(factors, train.model) if isinstance(factors, Path) else (factors, [])
    unusable = {done.name for done in found if done.status == "not_finite"}
    plan = [one for one in plan if one.treatment != "excluded" and one.name not in unusable]
    statistics, half = {done.name: done for done in found}, memory_bytes // 2
    device, size = next(train.model.parameters()).device, 4 * sum(one.rows * one.columns for one in plan)
    for some in _parts(query_indices, max(1, half // size)):
        of_parts = [
            [torch.cat([*gradients(uses, half)]) for uses in captured(queries, plan, part)]
            for part in _parts(some, batch)
        ]
        wanted = [torch.cat(each) for each in zip(*of_parts, strict=True)]
        for at, one in enumerate(plan if isinstance(factors, Path) else ()):
            tensors = kept.tensors_of(factors, statistics[one.name], device)  # type: ignore[arg-type]
            curvature = tensors["lambda"] + (0.1 * tensors["lambda"].mean() if damping is None else damping)
            wanted[at] = both_turned(both_turned(wanted[at], one, tensors) / curvature, one, tensors, back=True)
        for part in _parts(train_indices, batch):
            products = [
                torch.cat([asked.flatten(1) @ of.flatten(1).T for of in gradients(uses, half)], 1)
                for asked, uses in zip(wanted, captured(train, plan, part), strict=True)
            ]
            yield Block(some, part, torch.stack(products).sum(0).cpu())


def _parts(indices: np.ndarray, size: int) -> list[np.ndarray]:
    return np.split(indices, range(size, len(indices), size))


def gathered(blocks: Iterable[Block]) -> torch.Tensor:
    """All blocks as one [Q, N]."""
    rows: dict[bytes, list[torch.Tensor]] = {}
    for block in blocks:
        rows.setdefault(block.queries.tobytes(), []).append(block.scores)
    return torch.cat([torch.cat(parts, 1) for parts in rows.values()])


def tracin(
    checkpoints: Iterable[tuple[Task, Task, float]], train: np.ndarray, queries: np.ndarray, plan: Plan, batch: int = 32
) -> torch.Tensor:
    """TracIn [Q, N] (Pruthi et al. 2020, arXiv 2002.08484): products of gradients times the rate, summed over
    checkpoints (training task, query task, learning rate), each of which is loaded at its turn."""
    total = torch.zeros(len(queries), len(train))
    for of_train, of_queries, rate in checkpoints:
        total += rate * gathered(scores(of_train, of_queries, train, queries, plan, batch=batch))
    return total
