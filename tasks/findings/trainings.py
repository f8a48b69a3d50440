"""Trainings of arms with several seeds: their comparison, and what to keep in mind of how they were trained."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np

from tasks.findings.arms import arm_table, comparison_table, differences_in_words, why_not_shown
from tasks.findings.final_results import StudyResults
from tasks.findings.statistics.comparison import ArmMean, Comparison, arm_mean
from tasks.findings.table import Table
from tasks.training.trained import Trained

Form = Callable[[float], str]
DIVERGED = 1.05
"""The last value as a multiple of the best one, from which a training is said to diverge."""


class TrainedArm(ArmMean):
    """An arm over its seeds; `values` are those of the weights that were kept. `learned`: every seed came so low."""

    learned: bool
    cells: dict[str, Trained]

    @classmethod
    def of(
        cls, values: Mapping[str, float], cells: Mapping[str, Trained], required: float, level: float, **more: Any
    ) -> Self:
        """`required`: the value at which an arm has learned; `level`: the confidence level of the interval."""
        learned = all(value <= required for value in values.values())
        return cls(**dict(arm_mean(values, level)), learned=learned, cells=dict(cells), **more)

    @property
    def late_divergence(self) -> tuple[float, str]:
        """The last value as a multiple of the best one, at most over seeds, and the seed."""
        return max((cell.last / self.values[seed], seed) for seed, cell in self.cells.items())


class ArmsResults(StudyResults):
    """Arms over seeds, lower values better. With every seed an arm that learned came to `learned_ratio` of the lowest
    error that needs no learning, or below; the others are `unlearned`."""

    reference: str
    seeds: list[int]
    arms: Mapping[str, TrainedArm]
    differences: list[Comparison]
    confidence_level: float
    min_seeds: int
    learned_ratio: float

    @property
    def unlearned(self) -> list[str]:
        return [name for name, arm in self.arms.items() if not arm.learned]

    @property
    def together(self) -> int:
        """The number of comparisons that were corrected together."""
        return len(self.differences)


def verdict(results: ArmsResults, comparisons: Sequence[Comparison]) -> str:
    """The answer of the comparisons in a line; arms that are better before those that are worse."""
    if results.reference in results.unlearned:
        return f"Not shown: {results.reference} itself is not shown to learn."
    if all(comparison.unlearned for comparison in comparisons):
        return f"Not shown: {', '.join(comparison.arm for comparison in comparisons)} are not shown to learn."
    better = [comparison for comparison in comparisons if comparison.better]
    worse = [comparison for comparison in comparisons if comparison.worse]
    if not better and not worse:
        return why_not_shown(comparisons, results.min_seeds)
    return f"{'Yes' if better else 'No'}: {differences_in_words(better or worse)}."


def learning_caution(results: ArmsResults) -> list[str]:
    """The caution that arms are not shown to learn."""
    if not results.unlearned:
        return []
    return [
        f"**Not shown to learn: {', '.join(results.unlearned)}.** With some seed their error is above "
        f"{results.learned_ratio:g} of what needs no learning."
    ]


def convergence_caution(results: ArmsResults) -> str:
    """The number of trainings that were best at their last step."""
    cells = [cell for arm in results.arms.values() for cell in arm.cells.values()]
    last = sum(cell.best_step == cell.last_step for cell in cells)
    fact = f"{last} of {len(cells)} trainings were best at their last step"
    return f"**{fact}**: how fast arms learn is compared." if 2 * last > len(cells) else f"{fact}."


def step_cautions(results: ArmsResults, form: Form) -> list[str]:
    """The shares of clipped gradients, and the arms that diverge late."""
    shares = {name: np.mean([cell.clipped_share for cell in arm.cells.values()]) for name, arm in results.arms.items()}
    listing = ", ".join(f"{share:.0%} of the steps of {name}" for name, share in shares.items())
    return [
        f"Gradients were clipped in {listing}: arms that are clipped more often take other steps, whatever they are "
        "trained on.",
        *(_divergence(name, arm, form) for name, arm in results.arms.items() if arm.late_divergence[0] > DIVERGED),
    ]


def _divergence(name: str, arm: TrainedArm, form: Form) -> str:
    seed = arm.late_divergence[1]
    cell = arm.cells[seed]
    return (
        f"**{name} diverges late**: with seed {seed} the error is {form(arm.values[seed])} at step "
        f"{cell.best_step:,}, which was kept, and {form(cell.last)} at step {cell.last_step:,}."
    )


def cell_table(results: ArmsResults, form: Form, more: Mapping[str, Mapping[str, ArmMean]]) -> Table:
    """A row for each training; `more`: further columns, by arm."""
    rows = []
    for name, arm in results.arms.items():
        for seed, cell in arm.cells.items():
            errors = [form(arm.values[seed]), f"{cell.best_step:,}", form(cell.last), f"{cell.last_step:,}"]
            errors += [form(by_arm[name].values[seed]) for by_arm in more.values()]
            gradients = [f"{cell.clipped_share:.0%}", f"{cell.largest_gradient_norm:.3g}"]
            rows.append([name, seed, *errors, *gradients, results.run_of(f"{name}-{seed}")])
    return Table(
        "Every training: the error at its best step, whose weights are kept, and at its last; the share of its steps "
        "whose gradient was clipped, and the longest gradient.",
        ["arm", "seed", "best error", "at step", "last error", "at step", *more, "clipped", "longest", "run"],
        rows,
    )


def arm_tables(
    results: ArmsResults,
    what: str,
    arms: Mapping[str, ArmMean],
    differences: Sequence[Comparison],
    trivial: Mapping[str, float],
    kinds: Mapping[str, str] | None = None,
) -> list[Table]:
    """The means of `arms`, whose values are named `what`, beside what needs no learning, and their differences."""
    level = results.confidence_level
    return [
        arm_table(arms, level, what, kinds, trivial),
        comparison_table(differences, level, results.min_seeds, results.together),
    ]
