"""Every generator goes on from a checkpoint as if nothing had happened: torch, NumPy and Python."""

from __future__ import annotations

import random

import numpy as np
import torch

from storage import locks
from storage.checkpoints import Checkpoints
from tasks.training import state


def drawn() -> list[float]:
    return [torch.rand(()).item(), float(np.random.rand()), np.random.randn(), random.random(), random.gauss(0, 1)]


def test_every_generator_goes_on_from_a_checkpoint(tmp_path):
    lock = locks.acquire(tmp_path / "locks")
    try:
        checkpoints = Checkpoints(tmp_path / "checkpoints", {}, lock)
        drawn()
        checkpoints.save(1, {"rng": state.generator_tensors(False)}, {"rng": state._generator_numbers()})
        expected = drawn()
        assert drawn() != expected
        state._load_generators(checkpoints.verified(1))
        assert drawn() == expected
    finally:
        lock.release()
