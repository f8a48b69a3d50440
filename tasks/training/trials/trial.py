"""A training whose failure is a result: for a study of failures, or one that tries settings out.

A trial is the training itself, with its checkpoints and its place in the run directory of a stage: killed anywhere, it
goes on bit for bit, and one that fails fails again at the same step with the same numbers, until the stage has its
marker. Nothing is trained twice to learn how a trial ended, so it may be as long as a training. A stage has room for
one: trials of a study are stages side by side.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from storage.errors import NotLearning, NumericalFailure
from tasks.stage.execution import Execution
from tasks.stage.run import StageRun
from tasks.training.loop import initial_state, train_to_the_end
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position
from tasks.training.trials.findings import Ended
from tasks.training.trivial import compared


@dataclass(frozen=True)
class Trial:
    """The end of a trial. Its fields are JSON values, for a result.

    `step` is the last one made, or the one that failed. `metric` is the last value of the metric that decides (the
    lowest would hide that a training which dips falls apart later), and `ratio_to_trivial` its multiple of the lowest
    trivial value; None where there is none yet. `validations` are [step, value] of that metric, `gradient_norm_max` is
    the largest finite norm. `tensor` names what is not finite, `module` where that began, `examples` the dataset
    indices of the culprits (none in a validation) among `of_examples` of the step (0: it was not found out);
    `together`: each of them alone is finite.
    """

    ended: Ended
    step: int
    metric: float | None
    ratio_to_trivial: float | None
    gradient_norm_max: float
    validations: list[list[float]]
    tensor: str | None = None
    module: str | None = None
    examples: tuple[int, ...] = ()
    of_examples: int = 0
    together: bool = False


def trial(run: StageRun, problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> Trial:
    """Trains as `train` does and says how that ended; only `finished` leaves the best weights in `problem.model`.

    Raises what is no finding about the training: Stop, BadInput, CheckFailed, and errors of disk and memory.
    """
    state = initial_state(problem, schedule)
    try:
        train_to_the_end(run, problem, schedule, state, seed, execution)
    except NotLearning as error:
        return _ended("not_learning", error.step, problem, state.position)
    except NumericalFailure as error:
        found = _ended("numerical_failure", error.step, problem, state.position)
        return replace(
            found,
            tensor=error.tensor,
            module=error.module or None,
            examples=tuple(error.examples),
            of_examples=error.batch,
            together=error.together,
        )
    return _ended("finished", state.position.step, problem, state.position)


def _ended(ended: Ended, step: int, problem: Problem, position: Position) -> Trial:
    metric = position.validations[-1][1] if position.validations else None
    ratio = (
        None if metric is None else compared(metric, problem.trivial, problem.higher_decides).get("ratio_to_trivial")
    )
    norms = [position.gradient_norms.largest, *(epoch["gradient_norm_max"] for epoch in position.epochs)]
    return Trial(ended, step, metric, ratio, max(norms), position.validations)
