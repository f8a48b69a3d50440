"""Whether a model can fit one batch: minutes that show what hours of training would not.

A model that does not come down on the same few examples, step after step, has a fault that no more data heals: inputs
of a size that it cannot use, a loss without a gradient, weights that do not move. That it does come down shows little
more than this, so the gate stands before a training and never for one.
"""

from __future__ import annotations

from storage.errors import CheckFailed
from tasks.stage.execution import Execution
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.trials.findings import SingleBatchFit
from tasks.training.trials.short import make_steps, probed


def fit_single_batch(problem: Problem, schedule: Schedule, seed: int, execution: Execution) -> SingleBatchFit:
    """Trains `problem` on all examples of `schedule` in each step; what it was before is lost, and nothing is kept.

    `problem.evaluate` measures the same examples. ValueError where they are more than one batch; NumericalFailure as a
    training.
    """
    if schedule.steps_per_epoch != 1:
        raise ValueError(
            f"{schedule.examples} examples are more than one batch of {schedule.budget.effective_batch_examples}"
        )
    before, norms = probed(problem), [0.0]
    make_steps(problem, schedule, seed, execution, norms.append)
    return SingleBatchFit(
        examples=schedule.examples,
        steps=schedule.total_steps,
        before=before,
        after=probed(problem),
        gradient_norm_max=max(norms),
    )


def require_fit(fit: SingleBatchFit, trivial: float, max_ratio: float) -> None:
    """CheckFailed unless the metric after the steps is at most `max_ratio` of what a method without learning gets."""
    if not fit.after <= max_ratio * trivial:
        raise CheckFailed(
            "the model fits one batch",
            f"{fit.after:.4g} after {fit.steps:,} steps on the same {fit.examples:,} examples, from {fit.before:.4g}",
            f"at most {max_ratio * trivial:.4g}, {max_ratio:g} of the {trivial:.4g} that needs no learning",
            "More data heals no such fault: look at the size of the inputs, the learning rate, and whether every "
            "weight has a gradient",
        )
