"""The tables of the inversion study. Every row of numbers ends with the name of the run that they came from."""

from __future__ import annotations

from tasks.findings import comparison_table as over_seeds
from tasks.findings.provenance import run_name
from tasks.findings.statistics.comparison import Comparison
from tasks.findings.table import Table
from tasks.inversion.configuration import Mining
from tasks.inversion.final_results import FinalResults
from tasks.inversion.study import cell_role
from tasks.inversion.words import RECORDED, number, standing


def run_of(results: FinalResults, role: str) -> str:
    return run_name(results.runs[role])


def arm_table(results: FinalResults) -> Table:
    trivial = results.trivial
    rows: list[list[object]] = []
    for name, arm in results.arms.items():
        interval = " to ".join(map(number, arm.interval)) if arm.interval else "none (one seed)"
        deviation = "-" if arm.standard_deviation is None else f"{arm.standard_deviation:.2g}"
        ratio = f"{arm.mean / min(trivial.by_name.values()):.3f}"
        rows.append([name, mined(arm.mining), len(arm.values), number(arm.mean), interval, deviation, ratio])
    for name, value in trivial.by_name.items():
        rows.append([name, "no learning", "-", number(value), "-", "-", f"{value / min(trivial.by_name.values()):.3f}"])
    return Table(
        "Validation error (mean square over the entries of an inverse) by arm: mean over seeds, Student's t interval, "
        "standard deviation (ddof 1), and the mean as a multiple of the better of what needs no learning. The runs of "
        "an arm are those of the table of trainings.",
        ["arm", "negatives", "seeds", "error", "interval", "deviation", "of the trivial"],
        rows,
    )


def mined(mining: Mining) -> str:
    """Where an arm's negatives come from, in words."""
    if not mining.uses_descent:
        return mining.strategy
    share = f"{mining.adversarial_share:.0%} " if mining.strategy == "mixed" else ""
    how = "" if mining.descent == "corrected" else ", as published"
    return (
        f"{share}adversarial: {mining.descent_steps} steps of {mining.step_scale:g} from noise of "
        f"{mining.noise_scale:g}{how}"
    )


def difference_table(results: FinalResults) -> Table:
    return _differences(results, results.differences)


def out_of_distribution_table(results: FinalResults) -> Table:
    arms = {name: arm.out_of_distribution for name, arm in results.arms.items()}
    trivial = results.trivial_out_of_distribution
    beside = ", ".join(f"{name} gets {number(value)}" for name, value in trivial.by_name.items())
    split = results.splits["out_of_distribution"]
    of = f"Error on {split.matrices:,} matrices out of distribution (without learning: {beside}), same networks"
    return over_seeds.arm_table(arms, results.confidence_level, of)


def out_of_distribution_differences(results: FinalResults) -> Table:
    return _differences(results, results.out_of_distribution)


def _differences(results: FinalResults, found: list[Comparison]) -> Table:
    together = len(results.differences) + len(results.out_of_distribution)
    return over_seeds.comparison_table(found, results.confidence_level, results.min_seeds, together)


def cell_table(results: FinalResults) -> Table:
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
        [
            [
                name,
                seed,
                number(value),
                f"{arm.best_step[seed]:,}",
                number(arm.last[seed]),
                f"{arm.last_step[seed]:,}",
                number(arm.out_of_distribution.values[seed]),
                f"{arm.clipped_share[seed]:.0%}",
                f"{arm.largest_gradient_norm[seed]:.3g}",
                run_of(results, cell_role(name, int(seed))),
            ]
            for name, arm in results.arms.items()
            for seed, value in arm.values.items()
        ],
    )


def early_stop_table(results: FinalResults) -> Table:
    return Table(
        "What each arm would have kept with a patience of so many validations, and the step at which it would have "
        "ended: means over seeds, by the validations of the trainings above.",
        ["arm", "patience", "ends at step", "error kept", "error of the whole", "lost"],
        [
            [
                one.arm,
                one.patience,
                f"{one.step:,.0f}",
                number(one.error),
                number(one.whole_error),
                f"{one.error / one.whole_error - 1:.2%}",
            ]
            for one in results.early_stops
        ],
    )


def negative_table(results: FinalResults) -> Table:
    found = results.probes.conditioning
    return Table(
        f"Negatives that each arm's network (seed {results.seeds[0]}) gives for {found.matrices} matrices, with the "
        "corrected descent from noise of the arm's deviation: median condition number and smallest singular value of "
        "y, beside those of the true inverses; mean |A y - I|; mean distance from the inverse, relative to its norm; "
        "the share that is nearer than the limit (false); mean E(true) - E(negative), and the share that lies lower; "
        "steps kept; their spread as a multiple of the inverses'; mean norm of the first gradient. A is never mined.",
        ["arm", "t", "steps", "cond(y)", "of inverses", "smallest", "of inverses", "residual", "distance", "false",
         "energy gap", "lower", "kept", "spread", "gradient", "run"],
        [
            [
                one.arm,
                one.time,
                one.descent_steps,
                f"{one.condition:.1f}",
                f"{one.true_condition:.1f}",
                f"{one.smallest_singular_value:.3f}",
                f"{one.true_smallest_singular_value:.3f}",
                f"{one.residual:.2f}",
                f"{one.distance:.2f}",
                f"{one.false_share:.1%}",
                f"{one.energy_gap:+.3g}",
                f"{one.below_share:.1%}",
                f"{one.kept_share:.1%}",
                f"{one.spread:.2f}",
                f"{one.gradient_norm:.2f}",
                run_of(results, "probe"),
            ]
            for one in found.negatives
        ],
    )  # fmt: skip


def recorded_table() -> Table:
    return Table(
        "What the recorded study says of itself, beside what needs no learning on this study's matrices of that "
        "rank. No run of this study stands behind these numbers.",
        ["what", "error", "predicting zero", "predicting the mean", "which is"],
        [
            [what, f"{value:.6g}", f"{trivial.zero:.4g}", f"{trivial.mean:.4g}", standing(value, trivial)]
            for what, (value, trivial) in RECORDED.items()
        ],
    )
