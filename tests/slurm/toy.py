"""A study of two stages for the real cluster: a training as long and as troublesome as wanted, and one that reads it.

How long a step takes, and what comes in between, are execution fields: the toy ends with the same bytes however it got
there, so that a run here without any delay says what a run through many jobs must give.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from deployments.dag.walk import Dispatcher, Handle
from deployments.study_flow import study_flow
from storage.errors import BadInput, CheckFailed
from tasks.stage.configuration import execution, scientific
from tasks.stage.execution import Execution
from tasks.stage.run import Stage, StageInput, StageRun
from tasks.stage.study import StageConfiguration, StudyBase
from tasks.training.loop import train
from tasks.training.schedule import Schedule
from tests.tasks.tiny import ToyConfig, toy_problem

STEPS_PER_EPOCH = 6


HOW = Execution(micro_batch_examples=4, cpu_threads=1, checkpoint_every_steps=1)


class TrainingConfig(ToyConfig):
    """The toy training of tests/tasks/tiny.py, slower."""

    step_seconds: float = execution(0.0, description="How long each step rests.")
    pauses_while: str = execution(
        "", description="A file; while it is there an attempt takes one step, and then rests."
    )
    check_fails_while: str = execution("", description="A file; while it is there a check of the first step fails.")
    bad_input_while: str = execution("", description="A file; while it is there the stage refuses to begin.")
    said_in: str = execution("", description="A file whose text the result repeats, as if the work were not certain.")
    memory_mb: int = execution(0, description="Memory that it takes beside what it needs.")
    execution: Execution = execution(HOW, description="How it runs: a checkpoint after each step.")


class TellConfig(StageConfiguration):
    """Nothing to choose."""


class Study(StudyBase):
    """The toy as a study."""

    seed: int = scientific(3, description="Order of the examples.")
    training: TrainingConfig = scientific(TrainingConfig(), description="The stage `toy-training`.")
    execution: Execution = execution(HOW, description="How, and what its jobs ask for.")


TRAIN = Stage("toy-training", TrainingConfig, "tests.slurm.toy:train_toy", needs="cpu")
TELL = Stage("toy-report", TellConfig, "tests.slurm.toy:tell", needs="cpu")


def page(study: Study, stage: Dispatcher) -> Handle:
    return stage(TELL, TellConfig(), trained=stage(TRAIN, study.training))


toy = study_flow(page)


def train_toy(run: StageRun, config: TrainingConfig) -> dict[str, Any]:
    if config.bad_input_while and Path(config.bad_input_while).exists():
        raise BadInput(f"{config.bad_input_while} is in the way")
    ballast = b"x" * (config.memory_mb << 20)
    problem = toy_problem(config)
    steps = itertools.count(1)
    problem.optimizer.register_step_post_hook(lambda *_: _rest(run, config, next(steps)))
    if config.check_fails_while:
        problem.checks = {1: [lambda model: _check(model, Path(config.check_fails_while))]}
    position = train(run, problem, Schedule(config.budget, config.examples), config.seed, config.execution)
    del ballast
    with run.publish("model") as folder:
        save_file(problem.model.state_dict(), folder / "model.safetensors")
    weights = (run.directory / "model" / "model.safetensors").read_bytes()
    said = Path(config.said_in).read_text() if config.said_in else ""
    return {"weights_digest": hashlib.sha256(weights).hexdigest(), "said": said, **asdict(position)}


def _rest(run: StageRun, config: TrainingConfig, step: int) -> None:
    """The first step's checkpoint can be seen; a signal that asks for the end is heeded."""
    time.sleep(config.step_seconds)
    while step > 1 and config.pauses_while and Path(config.pauses_while).exists() and not run.stop.requested:
        time.sleep(0.1)


def _check(_model: nn.Module, obstacle: Path) -> None:
    if obstacle.exists():
        raise CheckFailed("the way is free", str(obstacle), "no file")


def tell(run: StageRun, config: TellConfig, trained: StageInput) -> dict[str, Any]:
    return {"told": trained.result["weights_digest"], "step": trained.result["step"]}
