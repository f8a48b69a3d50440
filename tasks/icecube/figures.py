"""The figures of the direction study: trials by seed, their ways, rates, the training."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from tasks.findings.document import Figure
from tasks.findings.figures import SERIES_STYLES, Curve, Dots, Estimated, curves, forest, over_values
from tasks.icecube.final_results import NORMALISED, RAW, FinalResults
from tasks.icecube.words import degrees
from tasks.stage.run import StageInput

SHOWN: tuple[list[str], ...] = ([], ["dropout"], ["inputs"])
"""The trials whose way is drawn, by what they change."""


def figures(results: FinalResults, stages: Mapping[str, StageInput]) -> dict[str, Figure]:
    """File name -> figure."""
    drawn = {"answer": _answer(results), "rates": _rates(results), "training": _training(results, stages["trained"])}
    if ways := _ways(results):
        drawn["ways"] = ways
    return drawn


def _answer(results: FinalResults) -> Figure:
    """Where each trial ended; one of which no seed came to its end has no dot, and its label says so."""
    rows, trivial = [], results.trivial.best_constant_degrees
    for name, trial in sorted(results.trials.items(), key=lambda item: not item[1].healed):
        angles, lost = trial.angles, len(trial.seeds) - len(trial.angles)
        label = f"{name} ({lost} of {len(trial.seeds)} failed)" if lost else name
        mean, ends = (sum(angles) / len(angles), [angles[0], angles[-1]]) if angles else (None, None)
        rows.append(Estimated("healed" if trial.healed else "not healed", label, mean, ends))
    caption = (
        "Where each trial ended: mean angle on validation, and from the lowest to the highest of its seeds, of those "
        f"that came to an end. Line: the best constant direction. Grey: at most {results.healed_ratio:g} of it, which "
        "is asked of every seed of a trial that heals."
    )
    band = (0.0, results.healed_ratio * trivial)
    return forest("answer", caption, rows, "mean angle (degrees)", degrees, line=trivial, band=band)


def _ways(results: FinalResults) -> Figure | None:
    """The validations of some trials, each with the seed that came furthest, of several the worst."""
    drawn = []
    names = {tuple(trial.changes): name for name, trial in results.trials.items()}
    for changes, style in zip(SHOWN, SERIES_STYLES, strict=True):
        name = names.get(tuple(changes), "")
        known = [one for one in results.trials[name].seeds.values() if one.validations] if name else []
        if known:
            chosen = max(known, key=lambda one: (len(one.validations), one.validations[-1][1]))
            drawn.append(Curve(f"{name}, seed {chosen.seed}", style, chosen.validations, dots=True))
    if not drawn:
        return None
    caption = "The mean angle at each validation, with the seed of each trial that came furthest, of several the worst."
    ends = "; ".join(f"{curve.name} ends at {degrees(curve.points[-1][1])}" for curve in drawn)
    return curves("ways", caption, ends, drawn, "optimizer step", "mean angle (degrees)")


def _rates(results: FinalResults) -> Figure:
    series: dict[str, list[tuple[float, Dots]]] = {}
    ticks: dict[float, str] = {}
    for inputs in (RAW, NORMALISED):
        rows = results.rates[inputs]
        ticks |= {row.rate: f"{row.rate:g}" for row in rows}
        series[inputs] = [
            (
                row.rate,
                Dots(
                    f"{row.rate:g}", [], row.mean, None if row.low is None or row.high is None else [row.low, row.high]
                ),
            )
            for row in rows
        ]
    caption = (
        f"What {results.rate_steps} steps at a rate change of the mean angle, over the seeds that came to an end: "
        "mean, lowest and highest. Below 0 is a gain; where no seed came to an end there is nothing."
    )
    numbers = "; ".join(
        f"{inputs} {point.label}: {'not finite' if point.mean is None else f'{point.mean:+.1f}'}"
        for inputs, points in series.items()
        for _, point in points
    )
    return over_values("rates", caption, numbers, series, ticks, "learning rate", "change (degrees)")


def _training(results: FinalResults, trained: StageInput) -> Figure:
    rows = [json.loads(line) for line in trained.run.metrics_file.read_text().splitlines()]
    points = [[row["step"], row["angle_degrees"]] for row in rows if "angle_degrees" in row]
    trivial = results.trivial.best_constant_degrees
    losses = [[row["step"], math.degrees(row["train_loss"])] for row in rows if "train_loss" in row]
    drawn = [
        Curve("train (moving batches)", SERIES_STYLES[1], losses),
        Curve("validation", SERIES_STYLES[1], points, dots=True),
        Curve("constant direction", SERIES_STYLES[0], [[points[0][0], trivial], [points[-1][0], trivial]]),
    ]
    caption = "The training: mean angle on validation and on the batches, beside the best constant direction."
    end = f"It ends at {degrees(points[-1][1])}, the constant direction gets {degrees(trivial)}"
    return curves("training", caption, end, drawn, "optimizer step", "mean angle (degrees)")
