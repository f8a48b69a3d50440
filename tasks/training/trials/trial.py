"""A training whose failure is a result: for a study of failures, or one that tries settings out.

A trial is the training itself, with its checkpoints and its place in the run directory of a stage: killed anywhere, it
goes on bit for bit, and one that fails fails again at the same step with the same numbers, until the stage has its
marker. Nothing is trained twice to learn how a trial ended, so it may be as long as a training. A stage has room for
one: trials of a study are stages side by side.
"""

from storage.errors import NotLearning, NumericalFailure
from tasks.stage.execution import Execution
from tasks.stage.run import StageRun
from tasks.training.loop import initial_state, train_to_the_end
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import State
from tasks.training.trials.findings import Failure, TrialEnd


def trial(run: StageRun, problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> TrialEnd:
    """Trains as `train` does and says how that ended; metrics.jsonl has its numbers.

    `problem.model` is left with the weights of the last step, as they are validated: where a trial dips and falls apart
    later, the best ones would hide it. Raises what is no finding about the training: Stop, BadInput, CheckFailed, and
    errors of disk and memory.
    """
    state = initial_state(problem, schedule)
    failure = None
    try:
        train_to_the_end(run, problem, schedule, state, seed, execution)
        state.load_best(run.checkpoints.verified(state.position.step))
    except (NotLearning, NumericalFailure) as error:
        problem.model.load_state_dict(state.judged().state_dict())
        failure = _described(error) if isinstance(error, NumericalFailure) else None
    return TrialEnd(failure=failure, gradient_norm_max=_largest_norm(state))


def _largest_norm(state: State) -> float:
    """The largest finite norm, also of an epoch that was not finished."""
    epochs = (epoch["gradient_norm_max"] for epoch in state.position.epochs)
    return max([state.position.gradient_norms.largest, *epochs])


def _described(error: NumericalFailure) -> Failure:
    return Failure(
        step=error.step,
        tensor=error.tensor,
        module=error.module or None,
        examples=error.examples,
        of_examples=error.batch,
        together=error.together,
    )
