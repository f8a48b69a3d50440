"""Every generator goes on from a checkpoint as if nothing had happened: torch, NumPy and Python."""

import random

import numpy as np
import torch

from storage import locks
from storage.checkpoints import Checkpoints
from tasks.stage import generators


def drawn() -> list[float]:
    return [torch.rand(()).item(), float(np.random.rand()), np.random.randn(), random.random(), random.gauss(0, 1)]


def test_every_generator_goes_on_from_a_checkpoint(tmp_path):
    lock = locks.acquire(tmp_path / "locks")
    try:
        checkpoints = Checkpoints(tmp_path / "checkpoints", {}, lock)
        drawn()
        checkpoints.save(1, {"rng": generators.generator_tensors(False)}, {"rng": generators.generator_numbers()})
        expected = drawn()
        assert drawn() != expected
        saved = checkpoints.verified(1)
        generators.load_generators(saved.tensors("rng"), saved.state["rng"])
        assert drawn() == expected
    finally:
        lock.release()
