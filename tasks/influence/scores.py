"""Influence of training examples on queries: gradient(query)^T (Lambda + damping)^-1 gradient(example), in blocks.

The higher, the more a training example lowers the query's loss. TracIn (Pruthi et al. 2020, arXiv 2002.08484) is
the sum over checkpoints of the rate times the product without curvature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from storage.errors import BadInput
from tasks.influence import kept
from tasks.influence.capture import Use, captured, parts_of, summed
from tasks.influence.factors import MEMORY, bases_of, turned
from tasks.influence.plan import ModulePlan
from tasks.influence.task import Task, batches


@dataclass(frozen=True)
class Block:
    """Scores [Q, N] of some queries and some training examples, by their indices."""

    queries: np.ndarray
    train: np.ndarray
    scores: torch.Tensor


def scores(
    train: Task,
    queries: Task,
    train_indices: np.ndarray,
    query_indices: np.ndarray,
    factors: Path | Sequence[ModulePlan],
    *,
    damping: float | None = None,
    batch: int = 32,
    memory_bytes: int = MEMORY,
) -> Iterator[Block]:
    """The scores in blocks: some queries, and for these all training examples batch by batch, with true labels.

    `train` and `queries` share the model. `factors` is the folder of its finished ones, or a plan: then there is no
    curvature (the strategy `identity`). `damping` is added to Lambda; None: 0.1 of its mean, module by module. As many
    queries are held at once as `memory_bytes` allow: each is a gradient of the whole model.
    """
    if train.model is not queries.model:
        raise BadInput("the queries' task has another model than the training examples': give both the same object")
    usable = {}
    if isinstance(factors, Path):
        plan, found = kept.complete(factors, train.model)
        usable = {done.name: done for done in found if done.status not in ("excluded", "not_finite")}
        plan = [one for one in plan if one.name in usable]
    else:
        plan = [one for one in factors if one.treatment != "excluded"]
    at_once = max(1, memory_bytes // 2 // (4 * sum(one.rows * one.columns for one in plan)))
    for some in batches(query_indices, at_once):
        held: dict[str, list[torch.Tensor]] = {one.name: [] for one in plan}
        for part in batches(some, batch):
            for name, uses in captured(queries, plan, part).items():
                held[name].append(summed(uses))
        wanted = {name: torch.cat(gradients) for name, gradients in held.items()}
        for one in plan if usable else ():
            tensors = kept.tensors_of(Path(factors), usable[one.name], wanted[one.name].device)  # type: ignore[arg-type]
            weight = tensors["lambda"] + (0.1 * tensors["lambda"].mean() if damping is None else damping)
            sides = bases_of(one, tensors)
            wanted[one.name] = turned(turned(wanted[one.name], *sides) / weight, *sides, back=True)
        for part in batches(train_indices, batch):
            total = torch.zeros(len(some), len(part), device=next(train.model.parameters()).device)
            for name, uses in captured(train, plan, part).items():
                for use in uses:
                    total += _products(wanted[name], use, memory_bytes // 2)
            yield Block(some, part, total.cpu())


def _products(wanted: torch.Tensor, use: Use, memory_bytes: int) -> torch.Tensor:
    """Inner products [Q, B] of query gradients [Q, rows, columns] with those of one use."""
    queries, found = wanted.flatten(1), []
    for [part] in parts_of([use], wanted[0].numel(), memory_bytes):
        found.append(queries @ summed([part]).flatten(1).T)
    return torch.cat(found, 1)


def gathered(blocks: Iterable[Block]) -> torch.Tensor:
    """All blocks as one [Q, N]."""
    rows: dict[bytes, list[torch.Tensor]] = {}
    for block in blocks:
        rows.setdefault(block.queries.tobytes(), []).append(block.scores)
    return torch.cat([torch.cat(parts, 1) for parts in rows.values()])


def tracin(
    checkpoints: Iterable[tuple[Task, Task, float]],
    train_indices: np.ndarray,
    query_indices: np.ndarray,
    plan: Sequence[ModulePlan],
    batch: int = 32,
) -> torch.Tensor:
    """TracIn [Q, N] over kept checkpoints: (train task, query task, learning rate) each, loaded when its turn comes."""
    one_by_one = (
        rate * gathered(scores(train, queries, train_indices, query_indices, plan, batch=batch))
        for train, queries, rate in checkpoints
    )
    return torch.stack([*one_by_one]).sum(0)
