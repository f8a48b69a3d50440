"""Every generator goes on from a checkpoint as if nothing had happened: torch, NumPy and Python."""

from __future__ import annotations

import random

import numpy as np
import torch

from storage import locks
from storage.checkpoints import Checkpoints
from tasks.training import loop


def drawn() -> list[float]:
    return [torch.rand(()).item(), float(np.random.rand()), np.random.randn(), random.random(), random.gauss(0, 1)]


def test_every_generator_goes_on_from_a_checkpoint(tmp_path):
    lock = locks.acquire(tmp_path / "locks")
    try:
        checkpoints = Checkpoints(tmp_path / "checkpoints", {}, lock)
        drawn()
        tensors, state = loop._rng_state()
        checkpoints.save(1, {"rng": tensors}, {"rng": state})
        expected = drawn()
        assert drawn() != expected
        loop._load_rng(checkpoints.verified(1))
        assert drawn() == expected
    finally:
        lock.release()
