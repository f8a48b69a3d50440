"""The toy of tests/tasks/tiny.py, wide enough that a checkpoint takes several milliseconds to write.

Its loss draws from all three generators, so that any one that does not go on where it was shows in the weights. It
notes what it trained on outside every digest, so that the order of the examples can be compared itself.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from tasks.stage.run import Stage, StageRun
from tasks.training.loop import train_problem
from tasks.training.problem import adamw
from tasks.training.schedule import Schedule
from tests.tasks.tiny import TOY, ToyBatch, ToyConfig, ToyNetwork, toy_problem

WIDE_TOY = Stage(TOY.name, ToyConfig, "tests.kill.toy:train_wide_toy", TOY.version)
WIDTH = 256
TRAINED = "trained.jsonl"


class WideNetwork(ToyNetwork):
    """A quarter of a megabyte of weights."""

    def __init__(self, dropout: float) -> None:
        super().__init__(dropout)
        self.inner = nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.outer = nn.Linear(WIDTH, 1)


def train_wide_toy(run: StageRun, config: ToyConfig) -> dict[str, Any]:
    """The work of the stage. Each micro-batch is a line of TRAINED: attempt, and its examples, or null for a step."""
    problem = toy_problem(config)
    torch.manual_seed(0)
    problem.model = WideNetwork(config.dropout)
    problem.optimizer = adamw(problem.model, config.budget)
    steady = problem.losses
    notes = (run.directory / TRAINED).open("a", buffering=1)

    def losses(model: nn.Module, batch: ToyBatch) -> torch.Tensor:
        notes.write(json.dumps([run.lock.number, batch.indices.tolist()]) + "\n")
        return steady(model, batch) * (1 + 0.1 * np.random.rand() + 0.1 * random.random())

    problem.losses = losses
    problem.optimizer.register_step_post_hook(lambda *_: notes.write(json.dumps([run.lock.number, None]) + "\n"))
    torch.manual_seed(config.seed)
    with notes:
        position = train_problem(run, problem, Schedule(config.budget, config.examples), config.seed, config.execution)
    with run.publish("model") as folder:
        save_file(problem.model.state_dict(), folder / "model.safetensors")
    return asdict(position)


def trained(run: Path) -> list[tuple[int, list[int] | None]]:
    """(attempt, examples) of every micro-batch that was begun in a run directory, (attempt, None) after each step."""
    file = run / TRAINED
    return [tuple(json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []
