"""The tables and figures that the inversion study has beside those of any arms: doses, ways, stops, negatives."""

from tasks.findings.arms import answer_figure, arms_figure
from tasks.findings.document import Figure
from tasks.findings.figures import SERIES_STYLES, Dots, over_values
from tasks.findings.numbers import percent
from tasks.findings.statistics.comparison import Comparison
from tasks.findings.table import Table
from tasks.findings.trainings import training_curves
from tasks.inversion.configuration import Mining
from tasks.inversion.final_results import FinalResults
from tasks.inversion.results import Trivial

DOSES = {
    "descent_steps": "steps down the energy for a negative",
    "step_scale": "length of these steps, as a multiple of the schedule's",
    "noise_scale": "deviation of the noise that a negative begins with",
    "adversarial_share": "share of adversarial negatives",
}
"""The parts of the mining that a study can vary by degrees."""
RANK_10 = Trivial(zero=0.0584, mean=0.0343)
RANK_20 = Trivial(zero=0.02064, mean=0.01409)
RECORDED = {
    "pilot, called successful (rank 10)": (0.0688, RANK_10),
    "none, one seed (rank 20)": (0.0096761, RANK_20),
    "random, one seed (rank 20)": (0.00968396, RANK_20),
    "adversarial, one seed (rank 20)": (0.00982675, RANK_20),
}
"""Claims of the recorded study, beside what predicting zero and the mean get on matrices of that rank."""
FEWEST_DOSES = 3
INSIDE = "validation error"
NEGATIVES = {
    "arm": ("arm", "{}"),
    "t": ("time", "{}"),
    "steps": ("descent_steps", "{}"),
    "cond(y)": ("condition", "{:.1f}"),
    "of inverses": ("true_condition", "{:.1f}"),
    "smallest": ("smallest_singular_value", "{:.3f}"),
    "of inverses ": ("true_smallest_singular_value", "{:.3f}"),
    "residual": ("residual", "{:.2f}"),
    "distance": ("distance", "{:.2f}"),
    "false": ("false_share", "{:.1%}"),
    "energy gap": ("energy_gap", "{:+.3g}"),
    "lower": ("below_share", "{:.1%}"),
    "kept": ("kept_share", "{:.1%}"),
    "spread": ("spread", "{:.2f}"),
    "gradient": ("gradient_norm", "{:.2f}"),
}
"""Column of the table of negatives -> field of `NegativeFacts`, and how it is written."""


def number(value: float) -> str:
    return f"{value:.4g}"


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


def negative_table(results: FinalResults) -> Table:
    probe, run = results.probe, results.run_of("probe")
    return Table(
        f"Negatives that each arm's network (seed {results.seeds[0]}) gives for {results.probed_matrices} matrices, "
        "with the corrected descent from noise of the arm's deviation: median condition number and smallest singular "
        "value of y, beside those of the true inverses; mean |A y - I|; mean distance from the inverse, relative to "
        "its norm; the share that is nearer than the limit (false); mean E(true) - E(negative), and the share that "
        "lies lower; steps kept; their spread as a multiple of the inverses'; mean norm of the first gradient. A is "
        "never mined.",
        [*(name.strip() for name in NEGATIVES), "run"],
        [
            [*(form.format(getattr(facts, field)) for field, form in NEGATIVES.values()), run]
            for facts in probe.negatives
        ],
    )


def figures(results: FinalResults) -> dict[str, Figure | None]:
    """File name -> figure."""
    return {
        "arms": arms_figure("arms", results.arms, results.trivial.by_name, INSIDE),
        "dose": dose(results),
        "answer": _answer(results),
        "ways": _ways(results),
        "conditioning": _conditioning(results),
    }


def dose(results: FinalResults) -> Figure | None:
    """The error over the one thing in which all arms with mined negatives differ, where that is a number."""
    minings = {name: arm.mining for name, arm in results.arms.items() if arm.mining.uses_descent}
    varied = [name for name in Mining.model_fields if len({getattr(each, name) for each in minings.values()}) > 1]
    if len(varied) != 1 or varied[0] not in DOSES or len(minings) < FEWEST_DOSES:
        return None
    doses = {name: float(getattr(mining, varied[0])) for name, mining in minings.items()}
    values = [(doses[name], results.arms[name]) for name in sorted(doses, key=lambda name: doses[name])]
    reference = results.arms[results.reference]
    series = {
        "mined": [(dose, Dots("", list(arm.values.values()), arm.mean, arm.interval)) for dose, arm in values],
        results.reference: [(dose, Dots("", [], reference.mean)) for dose, _ in values],
    }
    label = DOSES[varied[0]]
    caption = f"Validation error over the {label}: seeds, mean and its interval; {results.reference} beside it."
    numbers = "; ".join(f"{dose:g}: {number(arm.mean)}" for dose, arm in values)
    ticks = {dose: f"{dose:g}" for dose, _ in values}
    return over_values("dose", caption, numbers, series, ticks, label, INSIDE)


def _answer(results: FinalResults) -> Figure:
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
        return reference.mean if kind == INSIDE else reference.out_of_distribution.mean

    return answer_figure({INSIDE: first, "out of distribution": outside}, caption, "difference (%)", base)


def _ways(results: FinalResults) -> Figure:
    """The first seed of as many arms as can be told apart."""
    seed = str(results.seeds[0])
    names = [results.reference, *(name for name in results.mined_first if name != results.reference)]
    drawn = {name: results.arms[name].cells[seed].validations for name in names[: len(SERIES_STYLES)]}
    caption = f"The validation error on the way, with seed {seed}.{_left_out(names[len(SERIES_STYLES) :])}"
    return training_curves(caption, drawn, INSIDE, number)


def _conditioning(results: FinalResults) -> Figure:
    """The condition number over the steps down the energy, at the first time, of as many arms as can be told apart."""
    negatives, most = results.probe.negatives, len(SERIES_STYLES) - 1
    time = negatives[0].time
    here = [facts for facts in negatives if facts.time == time]
    arms = results.mined_first[:most]
    series = {
        arm: [(float(facts.descent_steps), Dots("", [facts.condition])) for facts in here if facts.arm == arm]
        for arm in arms
    }
    series["true inverses"] = [
        (float(facts.descent_steps), Dots("", [facts.true_condition])) for facts in here if facts.arm == arms[0]
    ]
    ticks = {float(facts.descent_steps): f"{facts.descent_steps}" for facts in here}
    label = "median condition number of y"
    caption = f"Negatives at step {time} of the diffusion: {label}, after so many steps down the energy."
    caption += _left_out(results.mined_first[most:])
    numbers = "; ".join(f"{arm}: {', '.join(number(row.values[0]) for _, row in rows)}" for arm, rows in series.items())
    return over_values("conditioning", caption, numbers, series, ticks, "steps down the energy", label)


def _left_out(names: list[str]) -> str:
    return f" Not drawn: {', '.join(names)}." if names else ""
