"""inversion-report: which differences the seeds show, every number with the run that it came from."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tasks.findings.compare import compare
from tasks.findings.configuration import Metric
from tasks.findings.document import Document
from tasks.findings.final_results import of_runs
from tasks.findings.prose import fill
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.comparison import Comparison, arm_mean
from tasks.findings.trainings import arm_tables, cell_table
from tasks.inversion import views
from tasks.inversion.final_results import ArmFacts, DescentPart, EarlyStop, FinalResults
from tasks.inversion.numbers import Cell, gates, pilot_of
from tasks.inversion.results import MatricesResult, ProbeResult
from tasks.inversion.stages import AUDITED, INSIDE, OUTSIDE, SPLITS, MatricesConfig, ProbeConfig, ReportConfig
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested

PATIENCES = (1, 2, 4)


def report(run: StageRun, config: ReportConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(config, inputs, run)
    return publish_report(run, inputs, results, document(results))


def document(results: FinalResults) -> Document:
    """The report: answer, figures, tables."""
    outside = {name: arm.out_of_distribution for name, arm in results.arms.items()}
    kinds = {name: views.mined(arm.mining) for name, arm in results.arms.items()}
    split = results.splits["out_of_distribution"]
    of_arms = "Validation error (mean square over the entries of an inverse) by arm"
    of_outside = f"Error of the same networks on {split.matrices:,} matrices out of distribution"
    pieces = {
        **views.figures(results),
        "arm means": arm_tables(results, of_arms, results.arms, results.differences, results.trivial.by_name, kinds),
        "arm means outside": arm_tables(
            results, of_outside, outside, results.out_of_distribution, split.trivial.by_name
        ),
        "cells": cell_table(results, views.number, {"out of distribution": outside}),
        "negatives": views.negative_table(results),
    }
    words = {
        "recorded": views.RECORDED,
        "number": views.number,
        "standing": views.standing,
        "change": "{:+.2f}%".format,
    }
    return fill(Path(__file__).with_name("report.md"), results, pieces, **words)


def final_results(config: ReportConfig, inputs: Mapping[str, StageInput], run: StageRun) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    fixed, asked = MatricesResult.read(inputs["data"]), inputs["data"].configuration(MatricesConfig).matrices
    trivial, count = fixed.validation.trivial, asked.validation_matrices
    pilot = pilot_of(inputs["pilot"], trivial)
    stages = nested(inputs)
    cells = {
        arm: {str(n): Cell.of(f"{arm}, seed {n}", stages[arm][n], count) for n in config.seeds} for arm in config.arms
    }
    every = {f"{arm}, seed {seed}": cell for arm, by_seed in cells.items() for seed, cell in by_seed.items()}
    patience = min(cell.config.budget.patience_validations or math.inf for cell in every.values())
    required = config.learned_ratio * min(trivial.by_name.values())
    arms = {name: _arm(by_seed, required, config.confidence_level) for name, by_seed in cells.items()}
    differences = compare(
        {
            INSIDE: {name: arm.values for name, arm in arms.items()},
            OUTSIDE: {name: arm.out_of_distribution.values for name, arm in arms.items()},
        },
        dict.fromkeys(SPLITS, Metric(higher=False, pairs=config.comparisons)),
        config.confidence_level,
        config.min_seeds,
        [name for name, arm in arms.items() if not arm.learned],
    ).differences
    return FinalResults(
        **of_runs(run, inputs, AUDITED, gates(pilot, every)),
        rank=asked.rank,
        splits={"validation": fixed.validation, "out_of_distribution": fixed.out_of_distribution},
        trivial=trivial,
        pilot=pilot,
        reference=config.reference,
        seeds=config.seeds,
        arms=arms,
        differences=differences[INSIDE],
        out_of_distribution=differences[OUTSIDE],
        descent_parts=descent_parts(config.reference, arms, differences[INSIDE]),
        early_stops=[
            early_stop(name, arm, some) for name, arm in arms.items() for some in PATIENCES if some < patience
        ],
        confidence_level=config.confidence_level,
        min_seeds=config.min_seeds,
        learned_ratio=config.learned_ratio,
        probe=ProbeResult.read(inputs["probe"]),
        probed_matrices=inputs["probe"].configuration(ProbeConfig).probe.matrices,
    )


def _arm(by_seed: Mapping[str, Cell], required: float, level: float) -> ArmFacts:
    descents = [cell.result for cell in by_seed.values() if cell.result.descent_difference is not None]
    worst = max(descents, key=lambda cell: cell.descent_difference or 0.0, default=None)
    return ArmFacts.of(
        {seed: cell.error["validation"] for seed, cell in by_seed.items()},
        {seed: cell.trained for seed, cell in by_seed.items()},
        required,
        level,
        mining=next(iter(by_seed.values())).config.mining,
        out_of_distribution=arm_mean({seed: cell.error[OUTSIDE] for seed, cell in by_seed.items()}, level),
        descent_difference=worst.descent_difference if worst else None,
        descent_defect=worst.descent_defect if worst else "",
    )


def descent_parts(reference: str, arms: Mapping[str, ArmFacts], differences: Sequence[Comparison]) -> list[DescentPart]:
    """A part for each arm with the published descent that has a corrected one beside it."""
    descents = {name: arm.mining.descent for name, arm in arms.items() if arm.mining.uses_descent}
    percent = {(comparison.arm, comparison.reference): comparison.percent or 0.0 for comparison in differences}
    return [
        DescentPart(
            published=pair.arm,
            corrected=pair.reference,
            whole=percent[pair.arm, reference],
            without=percent[pair.reference, reference],
            shown=pair.better or pair.worse,
        )
        for pair in differences
        if (descents.get(pair.arm), descents.get(pair.reference)) == ("as-published", "corrected")
    ]


def early_stop(name: str, arm: ArmFacts, patience: int) -> EarlyStop:
    """By the validations of the whole trainings: nothing is trained again for it.

    Trainings that themselves ended with some patience can tell only what less of it would have kept.
    """
    stops = [stopped(cell.validations, patience) for cell in arm.cells.values()]
    step, error = (float(np.mean(values)) for values in zip(*stops, strict=True))
    whole = float(np.mean([cell.best for cell in arm.cells.values()]))
    return EarlyStop(arm=name, patience=patience, step=step, error=error, whole_error=whole)


def stopped(points: Sequence[Sequence[float]], patience: int) -> tuple[float, float]:
    """The step at which a training with this patience ends, and the error it keeps, of validations [step, error]."""
    best, since = math.inf, 0
    for step, error in points:
        best, since = (error, 0) if error < best else (best, since + 1)
        if since == patience:
            return step, best
    return points[-1][0], best
