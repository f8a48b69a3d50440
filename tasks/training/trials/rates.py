"""One learning rate, tried for some steps with one seed.

What is asked after the steps is the metric on one fixed probe set: the loss of the moving batches varies more between
batches than a rate changes it.
"""

from __future__ import annotations

import math

from torch import nn

from storage.errors import NumericalFailure
from tasks.stage.execution import Execution
from tasks.training.gradients import norm_in_fp64
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.trials.findings import Tried
from tasks.training.trials.short import make_steps, probed


def try_rate(problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> Tried:
    """Trains `problem` for the steps of `schedule` at its rate; what it was before is lost, and nothing is kept.

    `problem.evaluate` measures the probe set, before and after.
    """
    before = probed(problem)
    largest, parameter = 0.0, ""

    def see(norm: float) -> None:
        nonlocal largest, parameter
        if norm > largest:
            largest, parameter = norm, _largest_gradient(problem.model)

    try:
        make_steps(problem, schedule, seed, execution, see)
        after = probed(problem)
        if not math.isfinite(after):
            raise NumericalFailure(schedule.total_steps, [], f"the {problem.decides.replace('_', ' ')}")
    except NumericalFailure as error:
        failed = f"{error.tensor} at step {error.step}"
        return Tried(change=None, gradient_norm_max=largest, parameter=parameter, failed=failed)
    return Tried(change=after - before, gradient_norm_max=largest, parameter=parameter)


def _largest_gradient(model: nn.Module) -> str:
    norms = {name: norm_in_fp64([p.grad]) for name, p in model.named_parameters() if p.grad is not None}
    return max(norms, key=lambda name: float(norms[name]))
