"""What the guard of a training does: it skips a step, or restores an earlier checkpoint. See `tasks.training.guard`."""

from storage.errors import NumericalFailure
from tasks.stage.progress import FOR_THE_TERMINAL
from tasks.stage.run import StageRun
from tasks.training.budget import SpikeGuard
from tasks.training.culprits import FailedStep, find_culprits
from tasks.training.problem import Problem
from tasks.training.saver import Saver
from tasks.training.schedule import Schedule
from tasks.training.state import State, StepStart


def skip(
    run: StageRun, problem: Problem, guard: SpikeGuard | None, state: State, start: StepStart | None, error: FailedStep
) -> bool:
    """Leaves the state as it was at the `start` of the failed step, but for its number; False where it may not."""
    guarded = state.position.guard
    if guard is None or guarded is None or start is None or guarded.skips_in_a_row >= guard.max_skips:
        return False
    try:
        culprits = find_culprits(problem, error.made)
    except RuntimeError as hindrance:  # gradients that cannot be asked for, as in some ways to save memory
        run.log.warning("the step to skip could not be looked at: %s", hindrance)
        culprits = None
    start.restore(state)
    examples = culprits.examples if culprits else error.examples
    state.position.step = error.step
    run.metrics.append(guarded.skip(error.step, examples))
    run.log.warning("step %s is skipped: %s is not finite, batch examples %s", error.step, error.tensor, examples)
    return True


def go_back(run: StageRun, schedule: Schedule, state: State, saver: Saver, error: NumericalFailure) -> int | None:
    """Restores the newest checkpoint before the failed step that the budget fixes, for a lower rate from there.

    Returns how many steps that undid; None where the guard does not go back any more.
    """
    guard, guarded, step = schedule.budget.guard, state.position.guard, state.position.step
    if guard is None or guarded is None or len(guarded.rollbacks) >= guard.max_rollbacks:
        return None
    back = schedule.fixed_checkpoint(error.step - 1)
    rollbacks = [*guarded.rollbacks, {"because": str(error), "from_step": error.step, "to_step": back}]
    state.optimizer.zero_grad(set_to_none=True)
    checkpoint = saver.go_back(back)
    run.metrics.cut_back(checkpoint.state["metrics"])
    state.restore(checkpoint)
    restored = state.position.guard
    assert restored is not None, "its budget has a guard"
    for number in range(len(restored.rollbacks), len(rollbacks)):
        restored.rollbacks.append(rollbacks[number])
        run.metrics.append(
            {
                "step": back,
                "went_back_from_step": rollbacks[number]["from_step"],
                "learning_rate_divided_by": restored.divisor(guard),
            }
        )
    told = f"{error}: back to step {back:,}, with the learning rate divided by {restored.divisor(guard):g}"
    run.log.warning("%s", told, extra=FOR_THE_TERMINAL)
    return step - back
