"""What the stages of toy.py do."""

import hashlib
import itertools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from storage.errors import BadInput, CheckFailed
from tasks.stage.run import StageInput, StageRun
from tests.slurm.toy import TellConfig, TrainingConfig


def train_toy(run: StageRun, config: TrainingConfig) -> dict[str, Any]:
    from safetensors.torch import save_file

    from tasks.training.loop import train_problem
    from tasks.training.schedule import Schedule
    from tests.tasks.tiny import toy_problem

    if config.bad_input_while and Path(config.bad_input_while).exists():
        raise BadInput(f"{config.bad_input_while} is in the way")
    ballast = b"x" * (config.memory_mb << 20)
    problem = toy_problem(config)
    steps = itertools.count(1)
    problem.optimizer.register_step_post_hook(lambda *_: _rest(run, config, next(steps)))
    if config.check_fails_while:
        problem.checks = {1: [lambda model: _check(model, Path(config.check_fails_while))]}
    position = train_problem(run, problem, Schedule(config.budget, config.examples), config.seed, config.execution)
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


def _check(_model: Any, obstacle: Path) -> None:
    if obstacle.exists():
        raise CheckFailed("the way is free", str(obstacle), "no file")


def tell(run: StageRun, config: TellConfig, trained: StageInput) -> dict[str, Any]:
    return {"told": trained.result["weights_digest"], "step": trained.result["step"]}
