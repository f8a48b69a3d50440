"""The figures of the inversion study: arms, dose, differences, best and last, the way of a training, the negatives."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.findings.arms import answer_figure, arms_figure
from tasks.findings.document import Figure
from tasks.findings.figures import SERIES_STYLES, Curve, Dots, curves, over_values
from tasks.findings.numbers import percent
from tasks.findings.statistics.comparison import Comparison
from tasks.inversion.configuration import Mining
from tasks.inversion.final_results import FinalResults
from tasks.inversion.words import number

DOSES = {
    "descent_steps": "steps down the energy for a negative",
    "step_scale": "length of these steps, as a multiple of the schedule's",
    "noise_scale": "deviation of the noise that a negative begins with",
    "adversarial_share": "share of adversarial negatives",
}
"""What of the mining a study can vary by degrees."""
FEWEST_DOSES = 3
INSIDE = "validation error"


def figures(results: FinalResults) -> dict[str, Figure]:
    """File name -> figure."""
    return {
        "arms": arms_figure("arms", results.arms, results.trivial.by_name, INSIDE),
        **_dose(results),
        "answer": _answer(results),
        "ways": _ways(results),
        "conditioning": _conditioning(results),
    }


def _dose(results: FinalResults) -> dict[str, Figure]:
    """The error over the one thing in which all arms with mined negatives differ, where that is a number."""
    mined = {name: arm.mining for name, arm in results.arms.items() if arm.mining.uses_descent}
    varied = [name for name in Mining.model_fields if len({getattr(one, name) for one in mined.values()}) > 1]
    if len(varied) != 1 or varied[0] not in DOSES or len(mined) < FEWEST_DOSES:
        return {}
    doses = {name: float(getattr(mining, varied[0])) for name, mining in mined.items()}
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
    return {"dose": over_values("dose", caption, numbers, series, ticks, label, "validation error")}


def _answer(results: FinalResults) -> Figure:
    first = sorted(
        results.differences,
        key=lambda one: (one.reference != results.reference, not results.arms[one.arm].mining.uses_descent),
    )
    outside = [one for one in results.out_of_distribution if one.reference == results.reference]
    caption = (
        "Differences of arms, seed by seed, in per cent of the reference's mean error: left of the line the arm is "
        f"better. Each interval ({percent(results.confidence_level)}) is of this difference alone."
    )

    def base(kind: str, one: Comparison) -> float:
        reference = results.arms[one.reference]
        return reference.mean if kind == INSIDE else reference.out_of_distribution.mean

    return answer_figure({INSIDE: first, "out of distribution": outside}, caption, "difference (%)", base)


def _ways(results: FinalResults) -> Figure:
    """Of as many arms as can be told apart, the first seed."""
    seed = str(results.seeds[0])
    others = [name for name in mined_first(results) if name != results.reference]
    drawn = [
        Curve(name, style, results.arms[name].validations[seed], dots=True)
        for name, style in zip([results.reference, *others], SERIES_STYLES, strict=False)
    ]
    left = _left_out(results, [curve.name for curve in drawn])
    caption = f"The validation error on the way, with seed {seed}.{left}"
    ends = "; ".join(f"{curve.name} ends at {number(curve.points[-1][1])}" for curve in drawn)
    return curves("ways", caption, ends, drawn, "optimizer step", "validation error")


def mined_first(results: FinalResults) -> list[str]:
    """The arms, those that were trained with mined negatives before the others: they are what is asked about."""
    return sorted(results.arms, key=lambda name: not results.arms[name].mining.uses_descent)


def _left_out(results: FinalResults, drawn: Sequence[str]) -> str:
    left = [name for name in results.arms if name not in drawn]
    return f" Not drawn: {', '.join(left)}." if left else ""


def _conditioning(results: FinalResults) -> Figure:
    """Over the steps down the energy, at the first time, of as many arms as can be told apart."""
    found = results.probes.conditioning.negatives
    time = found[0].time
    here = [one for one in found if one.time == time]
    arms = mined_first(results)[: len(SERIES_STYLES) - 1]
    series = {
        arm: [(float(one.descent_steps), Dots("", [one.condition])) for one in here if one.arm == arm] for arm in arms
    }
    series["true inverses"] = [
        (float(one.descent_steps), Dots("", [one.true_condition])) for one in here if one.arm == arms[0]
    ]
    ticks = {float(one.descent_steps): f"{one.descent_steps}" for one in here}
    label = "median condition number of y"
    caption = f"Negatives at step {time} of the diffusion: {label}, after so many steps down the energy."
    caption += _left_out(results, arms)
    numbers = "; ".join(f"{arm}: {', '.join(number(row.values[0]) for _, row in rows)}" for arm, rows in series.items())
    return over_values("conditioning", caption, numbers, series, ticks, "steps down the energy", label)
