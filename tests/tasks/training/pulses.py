"""A small neutrino telescope: light arrives at sensors along a track, whose direction a network estimates.

Its raw inputs have the sizes that made a study train for hours at 87 degrees: times around 10,000, places to 500,
charges over three decades. Most tracks come from above, so that one constant direction gets a little less than 90
degrees on all of them.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from storage.run_directory import RunDirectory, fingerprint
from tasks.stage.attempt import attempt
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.outcome import Outcome
from tasks.stage.run import Stage, StageRun
from tasks.stage.study import StageConfiguration
from tasks.training.budget import Budget, LearningGate
from tasks.training.loop import train_problem
from tasks.training.problem import Problem, adamw
from tasks.training.result import described
from tasks.training.schedule import Schedule

TRAINED, VALIDATED, PULSES = 512, 1000, 8
ISOTROPIC = math.pi / 2
"""Mean angle in radians between a constant direction and directions of which none is preferred."""


class PulsesConfig(StageConfiguration):
    normalised: bool = scientific(description="Whether the inputs are scaled to about 1.")
    not_learning: LearningGate | None = scientific(None, description="The gate, if any.")
    execution: Execution = execution(Execution(micro_batch_examples=32, cpu_threads=1), description="How.")


PULSES_STAGE = Stage("pulses", PulsesConfig, "tests.tasks.training.pulses:train_pulses")


class PulseNetwork(nn.Module):
    """Pulses [B, P, 5] (time, charge, x, y, z) to unit vectors [B, 3]: each pulse alone, then their mean."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.pulse = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.event = nn.Linear(width, 3)

    def forward(self, pulses: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(self.event(self.pulse(pulses).mean(1)), dim=1)


def events(count: int, normalised: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Pulses [N, P, 5] and true directions [N, 3]."""
    generator = torch.Generator().manual_seed(7)
    downwards = torch.tensor([0.0, 0.0, -0.12])
    directions = nn.functional.normalize(torch.randn(count, 3, generator=generator) + downwards, dim=1)
    places = 1000 * torch.rand(count, PULSES, 3, generator=generator) - 500
    noise = 100 * torch.randn(count, PULSES, 1, generator=generator)
    times = 1e4 + (places * directions[:, None]).sum(2, keepdim=True) / 0.3 + noise
    charges = torch.exp(1.5 * torch.randn(count, PULSES, 1, generator=generator))
    if normalised:
        times, charges, places = (times - 1e4) / 1500, charges.log10() / 3, places / 500
    return torch.cat([times, charges, places], 2), directions


def angles(network: nn.Module, pulses: torch.Tensor, directions: torch.Tensor) -> torch.Tensor:
    """Angle in radians between each prediction and the truth, [B]."""
    return torch.arccos((network(pulses) * directions).sum(1).clamp(-1 + 1e-4, 1 - 1e-4))


def train_pulses(run: StageRun, config: PulsesConfig) -> dict[str, Any]:
    """48 steps, validated three times."""
    torch.manual_seed(0)
    network = PulseNetwork()
    pulses, directions = events(TRAINED + VALIDATED, config.normalised)
    budget = Budget(
        steps=48, learning_rate=1e-2, decay="constant", validations_per_epoch=1, not_learning=config.not_learning
    )

    def batch(indices: np.ndarray, _epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.from_numpy(indices)
        return pulses[chosen], directions[chosen]

    @torch.no_grad()
    def evaluate(model: nn.Module) -> float:
        return angles(model, pulses[TRAINED:], directions[TRAINED:]).mean().item()

    problem = Problem(
        network,
        adamw(network, budget),
        batch,
        lambda model, given: angles(model, *given),
        evaluate,
        decides="angle_rad",
        trivial={"any direction of an isotropic sky": ISOTROPIC},
    )
    schedule = Schedule(budget, TRAINED)
    position = train_problem(run, problem, schedule, 0, config.execution)
    return described(schedule, problem, position)


def pulses_directory(root: Path, config: PulsesConfig) -> RunDirectory:
    return RunDirectory(root, "tiny", "pulses", fingerprint("pulses", 1, config.scientific(), {}, {}))


def pulses_attempt(root: Path, config: PulsesConfig) -> Outcome:
    return attempt(PULSES_STAGE, config, pulses_directory(root, config), {})
