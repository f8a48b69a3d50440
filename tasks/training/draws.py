"""Random numbers of an example, as a pure function of (seed, purpose, epoch, index).

Noise or a mask that `batch(indices, epoch)` draws here is the same whatever the micro-batch, the order, the loader's
worker or the attempt, and another one in the next epoch. Counter-based: Philox-4x64-10 (Salmon et al., "Parallel
Random Numbers: As Easy as 1, 2, 3", 2011), whose key is a hash of (seed, purpose) and whose counter starts at
(epoch, index), so that every example has 2^128 values of its own and there is no state to save.
"""

import hashlib
import math
from collections.abc import Callable

import numpy as np
import torch


def uniform_at(seed: int, purpose: str, epoch: int, indices: np.ndarray, shape: tuple[int, ...] = ()) -> torch.Tensor:
    """Uniform numbers in [0, 1) for each example of `indices` [B] in `epoch`; fp32 [B, *shape] on the CPU.

    Different `purpose`s have independent numbers. Several threads may call it at once.
    """
    return _draw(
        seed, purpose, epoch, indices, shape, lambda generator, out: generator.random(out=out, dtype=out.dtype)
    )


def normal_at(seed: int, purpose: str, epoch: int, indices: np.ndarray, shape: tuple[int, ...] = ()) -> torch.Tensor:
    """Standard normal numbers; arguments and result are those of `uniform_at`."""
    return _draw(
        seed, purpose, epoch, indices, shape, lambda generator, out: generator.standard_normal(out=out, dtype=out.dtype)
    )


def _draw(
    seed: int,
    purpose: str,
    epoch: int,
    indices: np.ndarray,
    shape: tuple[int, ...],
    fill: Callable[[np.random.Generator, np.ndarray], object],
) -> torch.Tensor:
    digest = hashlib.sha256(f"draws {seed} {purpose}".encode()).digest()
    philox = np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8"))
    generator, start = np.random.Generator(philox), philox.state
    numbers = np.empty((len(indices), *shape), dtype=np.float32)
    for row, index in zip(numbers.reshape(len(indices), math.prod(shape)), indices, strict=True):
        start["state"]["counter"][:] = (0, 0, index, epoch)  # the low half counts the values of this example
        philox.state = start  # with nothing buffered; a third of the time of a new generator
        fill(generator, row)
    return torch.from_numpy(numbers)
