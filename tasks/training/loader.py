"""The micro-batches of the coming steps, in the order that the seed fixes, made here or ahead by worker threads.

The examples are a pure function of the step, so a continuation starts at its place and no worker has a state. Workers
are threads: they die with the process, need no copy of the dataset, and reading, decoding and NumPy release the
interpreter; several may call `batch` at once, so it must draw from no global generator.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tasks.training.order import Order
from tasks.training.schedule import Schedule

AHEAD_PER_WORKER = 2
WINDOWS_AT_ONCE = 64
"""Windows that are put in order together: that takes as long as one, 0.4 ms, most of what a step costs beside torch."""

MicroBatches = Iterator[tuple[np.ndarray, Any]]
"""Dataset indices [B] and their batch."""

Place = tuple[np.ndarray, int]
"""Dataset indices [B] and the epoch in which they are read."""


@contextmanager
def micro_batches(
    batch: Callable[[np.ndarray, int], Any],
    schedule: Schedule,
    order: Order,
    seed: int,
    after_step: int,
    size: int,
    workers: int,
) -> Iterator[MicroBatches]:
    """Yields the micro-batches of every step after `after_step`, each of at most `size` examples of one window."""
    places = (
        (indices, schedule.window(step)[0])
        for step in range(after_step + 1, schedule.total_steps + 1)
        for indices in _cut(examples_of(schedule, order, seed, step), size)
    )
    if not workers:
        yield ((indices, batch(indices, epoch)) for indices, epoch in places)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="loader") as pool:
        try:
            yield _make_ahead(pool, batch, places, AHEAD_PER_WORKER * workers)
        finally:
            pool.shutdown(cancel_futures=True)


def moved(tensor: torch.Tensor, where: torch.device) -> torch.Tensor:
    """Moves `tensor` to the device of the model. A GPU copies it from page-locked memory in its own time, so that the
    program does not wait for the GPU's earlier work."""
    return tensor.to(where) if where.type == "cpu" else tensor.pin_memory().to(where, non_blocking=True)


def examples_of(schedule: Schedule, order: Order, seed: int, step: int) -> np.ndarray:
    """Dataset indices of the window that `step` trains on, int64 [B]; costs the same at every step."""
    epoch, first, count = schedule.window(step)
    several = WINDOWS_AT_ONCE * schedule.budget.effective_batch_examples
    start = first // several * several
    placed = _ordered(order, seed, epoch, start, min(start + several, schedule.examples), schedule.examples)
    return placed[first - start : first - start + count].copy()


@lru_cache(maxsize=4)
def _ordered(order: Order, seed: int, epoch: int, start: int, end: int, count: int) -> np.ndarray:
    return order(seed, epoch, np.arange(start, end), count)


def _cut(indices: np.ndarray, size: int) -> list[np.ndarray]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


def _make_ahead(
    pool: ThreadPoolExecutor, batch: Callable[[np.ndarray, int], Any], places: Iterator[Place], ahead: int
) -> MicroBatches:
    waiting: deque[tuple[np.ndarray, Future[Any]]] = deque()
    for indices, epoch in places:
        waiting.append((indices, pool.submit(batch, indices, epoch)))
        if len(waiting) > ahead:
            indices, future = waiting.popleft()
            yield indices, future.result()
    for indices, future in waiting:
        yield indices, future.result()
