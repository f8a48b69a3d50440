"""inversion-report: which differences the seeds show, every number with the run that it came from."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.findings.arms import answer_figure, arm_table, comparison_table, differences_in_words, why_not_shown
from tasks.findings.document import Document, Figure
from tasks.findings.numbers import percent
from tasks.findings.prose import Pieces, fill
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.comparison import ArmMean, Comparison
from tasks.findings.table import Table
from tasks.inversion.final_results import FinalResults, final_results
from tasks.inversion.stages import ReportConfig, Trivial
from tasks.inversion.study import Mining
from tasks.stage.run import StageInput, StageRun

number = "{:.4g}".format
ERROR = "validation error"
DIVERGED = 1.05
"""The last error as a multiple of the best one, from which a training is said to diverge."""
RANK_10 = Trivial(zero=0.0584, mean=0.0343)
RANK_20 = Trivial(zero=0.02064, mean=0.01409)
RECORDED = {
    "pilot, called successful (rank 10)": (0.0688, RANK_10),
    "none, one seed (rank 20)": (0.0096761, RANK_20),
    "random, one seed (rank 20)": (0.00968396, RANK_20),
    "adversarial, one seed (rank 20)": (0.00982675, RANK_20),
}
"""Claims of the recorded study, beside what predicting zero and the mean get on matrices of that rank."""


def report(run: StageRun, config: ReportConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(config, inputs, run)
    return publish_report(run, inputs, results, document(results))


def document(results: FinalResults) -> Document:
    """The report: answer, figures, tables."""
    outside = {name: arm.out_of_distribution for name, arm in results.arms.items()}
    kinds = {name: mined(arm.mining) for name, arm in results.arms.items()}
    split = results.splits["out_of_distribution"]
    of_arms = "Validation error (mean square over the entries of an inverse) by arm"
    of_outside = f"Error of the same networks on {split.matrices:,} matrices out of distribution"
    pieces: Pieces = {
        "answer": answer(results),
        "arm means": arm_tables(results, of_arms, results.arms, results.differences, results.trivial, kinds),
        "arm means outside": arm_tables(results, of_outside, outside, results.out_of_distribution, split.trivial),
        "cells": cell_table(results),
    }
    diverged = {name: arm.late_divergence[1] for name, arm in results.arms.items() if arm.late_divergence[0] > DIVERGED}
    words = {"recorded": RECORDED, "number": number, "standing": standing, "change": "{:+.2f}%".format}
    answer_of = verdict(results, results.against_reference)
    return fill(Path(__file__).with_name("report.md"), results, pieces, verdict=answer_of, diverged=diverged, **words)


def verdict(results: FinalResults, comparisons: Sequence[Comparison]) -> str:
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


def standing(value: float, trivial: Trivial) -> str:
    """An error beside what needs no learning."""
    for name, error in sorted(trivial.by_name.items(), key=lambda item: -item[1]):
        if value >= error:
            return f"worse than {name} ({number(error)})"
    name, error = min(trivial.by_name.items(), key=lambda item: item[1])
    return f"{percent(round(value / error, 3))} of {name} ({number(error)})"


def mined(mining: Mining) -> str:
    """The origin of an arm's negatives, in words."""
    if not mining.uses_descent:
        return mining.strategy
    share = f"{mining.adversarial_share:.0%} " if mining.strategy == "mixed" else ""
    how = "" if mining.descent == "corrected" else ", as published"
    return (
        f"{share}adversarial: {mining.descent_steps} steps of {mining.step_scale:g} from noise of "
        f"{mining.noise_scale:g}{how}"
    )


def cell_table(results: FinalResults) -> Table:
    """A row for each training."""
    rows = []
    for name, arm in results.arms.items():
        for seed, cell in arm.cells.items():
            errors = [number(arm.values[seed]), f"{cell.best_step:,}", number(cell.last), f"{cell.last_step:,}"]
            errors.append(number(arm.out_of_distribution.values[seed]))
            gradients = [f"{cell.clipped_share:.0%}", f"{cell.largest_gradient_norm:.3g}"]
            rows.append([name, seed, *errors, *gradients, results.run_of(f"{name}-{seed}")])
    return Table(
        "Every training: the error at its best step, whose weights are kept, and at its last; the share of its steps "
        "whose gradient was clipped, and the longest gradient.",
        [
            "arm",
            "seed",
            "best error",
            "at step",
            "last error",
            "at step",
            "out of distribution",
            "clipped",
            "longest",
            "run",
        ],
        rows,
    )


def arm_tables(
    results: FinalResults,
    what: str,
    arms: Mapping[str, ArmMean],
    differences: Sequence[Comparison],
    trivial: Trivial,
    kinds: Mapping[str, str] | None = None,
) -> list[Table]:
    """The means of `arms`, whose values are named `what`, beside what needs no learning, and their differences."""
    level, together = results.confidence_level, len(results.differences) + len(results.out_of_distribution)
    return [
        arm_table(arms, level, what, kinds, trivial.by_name),
        comparison_table(differences, level, results.min_seeds, together),
    ]


def answer(results: FinalResults) -> Figure:
    """Differences from the reference first, those of arms with mined negatives before the others."""
    places = {name: place for place, name in enumerate(results.mined_first)}
    first = sorted(results.differences, key=lambda each: (each.reference != results.reference, places[each.arm]))
    outside = [difference for difference in results.out_of_distribution if difference.reference == results.reference]
    caption = (
        "Differences of arms, seed by seed, in per cent of the reference's mean error: left of the line the arm is "
        f"better. Each interval ({percent(results.confidence_level)}) is of this difference alone."
    )

    def base(kind: str, difference: Comparison) -> float:
        reference = results.arms[difference.reference]
        return reference.mean if kind == ERROR else reference.out_of_distribution.mean

    return answer_figure({ERROR: first, "out of distribution": outside}, caption, "difference (%)", base)
