"""The figures of the inversion study: arms, dose, differences, best and last, the way of a training, the negatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from tasks.inversion.configuration import Mining
from tasks.inversion.final_results import FinalResults
from tasks.inversion.results import NegativeFacts
from tasks.inversion.words import number
from tasks.report.figures import SERIES_STYLES, Curve, Dots, curves, dots, intervals, over_values
from tasks.report.page import Figure
from tasks.statistics.comparison import Comparison

DOSES = {
    "descent_steps": "steps down the energy for a negative",
    "step_scale": "length of these steps, as a multiple of the schedule's",
    "noise_scale": "deviation of the noise that a negative begins with",
    "adversarial_share": "share of adversarial negatives",
}
"""What of the mining a study can vary by degrees."""
FEWEST_DOSES = 3


def figures(results: FinalResults) -> dict[str, Figure]:
    """File name -> figure."""
    return {
        "arms": _arms(results),
        **_dose(results),
        "differences": _differences(results),
        "best-and-last": _best_and_last(results),
        "ways": _ways(results),
        "conditioning": _negatives(
            results, "conditioning", "median condition number of y", lambda one: one.condition, truth=True
        ),
        "distance": _negatives(results, "distance", "distance from the inverse (relative)", lambda one: one.distance),
        "energy-gap": _negatives(results, "energy-gap", "mean E(true) - E(negative)", lambda one: one.energy_gap),
    }


def _arms(results: FinalResults) -> Figure:
    rows = [Dots(name, list(arm.values.values()), arm.mean, arm.interval) for name, arm in results.arms.items()]
    trivial = number(results.trivial.mean)
    caption = (
        f"Validation error by seed, and the mean over seeds with its interval; predicting the mean gets {trivial}."
    )
    numbers = "; ".join(f"{name} {number(arm.mean)}" for name, arm in results.arms.items())
    return Figure(dots("arms", f"{caption} {numbers}.", rows, "validation error"), caption)


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
    drawn = over_values(
        "dose", f"{caption} {numbers}.", series, {dose: f"{dose:g}" for dose, _ in values}, label, "validation error"
    )
    return {"dose": Figure(drawn, caption)}


def _differences(results: FinalResults) -> Figure:
    """In per cent of the reference's mean, by which the interval is divided too."""

    def percent(one: Comparison) -> list[float] | None:
        base = results.arms[one.reference].mean
        return [100 * end / base for end in one.interval] if one.interval else None

    rows = [(f"{one.arm} - {one.reference}", one.percent or 0.0, percent(one)) for one in results.differences]
    caption = "Differences of arms, seed by seed, in per cent of the reference's mean; below 0 the arm is better."
    numbers = "; ".join(f"{name}: {value:+.2f}%" for name, value, _ in rows)
    return Figure(intervals("differences", f"{caption} {numbers}.", rows, "difference (%)"), caption)


def _best_and_last(results: FinalResults) -> Figure:
    rows = []
    for name, arm in results.arms.items():
        rows += [
            Dots(f"{name}, best", list(arm.values.values()), arm.mean),
            Dots(f"{name}, last", list(arm.last.values()), float(np.mean(list(arm.last.values())))),
        ]
    caption = "The error at the best step, whose weights are kept, and at the last one."
    numbers = "; ".join(f"{row.label} {number(row.mean or 0)}" for row in rows)
    return Figure(dots("best-and-last", f"{caption} {numbers}.", rows, "validation error"), caption)


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
    return Figure(curves("ways", f"{caption} {ends}.", drawn, "optimizer step", "validation error"), caption)


def mined_first(results: FinalResults) -> list[str]:
    """The arms, those that were trained with mined negatives before the others: they are what is asked about."""
    return sorted(results.arms, key=lambda name: not results.arms[name].mining.uses_descent)


def _left_out(results: FinalResults, drawn: Sequence[str]) -> str:
    left = [name for name in results.arms if name not in drawn]
    return f" Not drawn: {', '.join(left)}." if left else ""


def _negatives(
    results: FinalResults, name: str, label: str, value: Callable[[NegativeFacts], float], truth: bool = False
) -> Figure:
    """A number over the steps down the energy, at the first time, of as many arms as can be told apart."""
    found = results.probes.conditioning.negatives
    time = found[0].time
    here = [one for one in found if one.time == time]
    arms = mined_first(results)[: len(SERIES_STYLES) - truth]
    series = {
        arm: [(float(one.descent_steps), Dots("", [value(one)])) for one in here if one.arm == arm] for arm in arms
    }
    if truth:
        series["true inverses"] = [
            (float(one.descent_steps), Dots("", [one.true_condition])) for one in here if one.arm == arms[0]
        ]
    ticks = {float(one.descent_steps): f"{one.descent_steps}" for one in here}
    caption = f"Negatives at step {time} of the diffusion: {label}, after so many steps down the energy."
    caption += _left_out(results, arms)
    numbers = "; ".join(f"{arm}: {', '.join(number(row.values[0]) for _, row in rows)}" for arm, rows in series.items())
    return Figure(over_values(name, f"{caption} {numbers}.", series, ticks, "steps down the energy", label), caption)
