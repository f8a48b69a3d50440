"""inversion-report: which differences the seeds show, every number with the run that it came from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from storage.errors import CheckFailed
from tasks.findings.arms import number_line
from tasks.findings.audit import require_audited
from tasks.findings.document import Document, Figure, Section
from tasks.findings.provenance import provenance, run_directories
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.statistics.comparison import Comparison, Values, arm_mean, compare_together
from tasks.inversion.checks import require_pilot, require_training
from tasks.inversion.figures import figures
from tasks.inversion.final_results import ArmFacts, DescentPart, EarlyStop, FinalResults, Probes
from tasks.inversion.results import MatricesResult, PilotResult, ProbeResult, TrainResult
from tasks.inversion.stages import AUDIT_TOLERANCE, AUDITED, ReportConfig
from tasks.inversion.study import cell_role
from tasks.inversion.tables import (
    arm_table,
    cell_table,
    difference_table,
    early_stop_table,
    negative_table,
    out_of_distribution_differences,
    out_of_distribution_table,
    recorded_table,
)
from tasks.inversion.words import (
    LIMITS,
    QUESTION,
    about_negatives,
    about_training,
    against_reference,
    facts,
    lead,
    not_shown,
    recorded_claims,
    verdict,
)
from tasks.stage.run import StageInput, StageRun

PATIENCES = (1, 2, 4)


def report(run: StageRun, config: ReportConfig, **given: StageInput) -> Published:
    """Verifies every byte that it reads; `given` are the stages by the names that the page gives them."""
    require_verified(given)
    results = _results(config, given, run)
    return publish_report(run, given, results, document(results, figures(results)))


def document(results: FinalResults, drawn: Mapping[str, Figure]) -> Document:
    """What the report says."""
    return Document(
        f"{results.study}: does mining negatives help?",
        verdict(results),
        lead(results),
        [number_line(one) for one in against_reference(results)[:3]],
        drawn["answer"],
        not_shown(results),
        QUESTION,
        facts(results),
        [
            Section(
                "The arms",
                figures=[drawn[name] for name in ("arms", "dose") if name in drawn],
                tables=[arm_table(results), difference_table(results)],
            ),
            Section(
                "Out of distribution",
                texts=["The same networks on harder matrices, nearer to singular ones than any they were trained on."],
                tables=[out_of_distribution_table(results), out_of_distribution_differences(results)],
            ),
            Section(
                "The trainings",
                points=about_training(results),
                figures=[drawn["ways"]],
                tables=[cell_table(results), early_stop_table(results)],
            ),
            Section(
                "The negatives",
                texts=[
                    "Are hard negatives near-singular, or not wrong at all, or all alike? Asked of trained networks."
                ],
                points=about_negatives(results),
                figures=[drawn["conditioning"]],
                tables=[negative_table(results)],
            ),
            Section("The recorded study", points=recorded_claims(), tables=[recorded_table()]),
            Section("Limits", points=LIMITS),
        ],
    )


def _results(config: ReportConfig, given: Mapping[str, StageInput], run: StageRun) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    fixed = MatricesResult.read(given["data"])
    pilot = PilotResult.read(given["pilot"])
    require_pilot(given["pilot"], pilot, fixed.validation.trivial)
    cells = {
        arm: {str(seed): TrainResult.read(given[cell_role(arm, seed)]) for seed in config.seeds} for arm in config.arms
    }
    for arm, by_seed in cells.items():
        for seed, one in by_seed.items():
            require_training(f"{arm}, seed {seed}", given[cell_role(arm, int(seed))], one, fixed)
    trivial = min(fixed.validation.trivial.by_name.values())
    arms = {name: _arm(config, name, by_seed, trivial) for name, by_seed in cells.items()}
    unlearned = [name for name, arm in arms.items() if not arm.learned]
    inside = {name: arm.values for name, arm in arms.items()}
    outside = {name: arm.out_of_distribution.values for name, arm in arms.items()}
    differences, out_of_distribution = _compared(config, [inside, outside], unlearned)
    return FinalResults(
        study=config.study,
        rank=config.configuration["matrices"]["rank"],
        splits={"validation": fixed.validation, "out_of_distribution": fixed.out_of_distribution},
        trivial=fixed.validation.trivial,
        trivial_out_of_distribution=fixed.out_of_distribution.trivial,
        pilot=pilot,
        reference=config.configuration["reference"],
        seeds=config.seeds,
        arms=arms,
        differences=differences,
        out_of_distribution=out_of_distribution,
        descent_parts=_descent_parts(config.configuration["reference"], arms, differences),
        early_stops=_early_stops(config, arms),
        confidence_level=config.confidence_level,
        min_seeds=config.min_seeds,
        learned_ratio=config.learned_ratio,
        largest_difference=max(one.largest_difference for by_seed in cells.values() for one in by_seed.values()),
        probes=Probes(conditioning=ProbeResult.read(given["probe"])),
        audit=require_audited(given["audit"], AUDITED, AUDIT_TOLERANCE),
        numerics_changes={name: one.numerics_changes for name, one in given.items() if one.numerics_changes},
        runs=run_directories(given, run.run.root),
        provenance=provenance(given),
        configuration=config.configuration,
    )


def _arm(config: ReportConfig, name: str, by_seed: Mapping[str, TrainResult], trivial: float) -> ArmFacts:
    found = arm_mean({seed: one.validation_mse for seed, one in by_seed.items()}, config.confidence_level)
    outside = arm_mean({seed: one.out_of_distribution_mse for seed, one in by_seed.items()}, config.confidence_level)
    descents = [one for one in by_seed.values() if one.descent_difference is not None]
    worst = max(descents, key=lambda one: one.descent_difference or 0.0, default=None)
    return ArmFacts(
        **dict(found),
        mining=next(iter(by_seed.values())).mining,
        learned=all(value <= config.learned_ratio * trivial for value in found.values.values()),
        out_of_distribution=outside,
        last={seed: one.last_mse for seed, one in by_seed.items()},
        best_step={seed: one.best_step for seed, one in by_seed.items()},
        last_step={seed: one.last_step for seed, one in by_seed.items()},
        validations={
            seed: [[one_of["step"], one_of["validation_mse"]] for one_of in one.training["validations"]]
            for seed, one in by_seed.items()
        },
        clipped_share={seed: _of_steps(one, "gradient_steps_clipped_share") for seed, one in by_seed.items()},
        largest_gradient_norm={seed: _of_steps(one, "gradient_norm_max") for seed, one in by_seed.items()},
        descent_difference=worst.descent_difference if worst else None,
        descent_defect=worst.descent_defect if worst else "",
    )


def _of_steps(one: TrainResult, what: str) -> float:
    """What is told of the gradients of all steps: a training is one epoch."""
    (whole,) = one.training["gradients"]
    return float(whole[what])


def _compared(config: ReportConfig, tables: list[Values], unlearned: Sequence[str]) -> list[list[Comparison]]:
    """Each table's comparisons, all corrected together.

    CheckFailed where two cells have the same number: what tells them apart has not reached the training.
    """
    pairs = [(arm, reference) for arm, reference in config.comparisons]
    try:
        named = {str(number): values for number, values in enumerate(tables)}
        return [*compare_together(named, pairs, config.confidence_level, config.min_seeds, unlearned).values()]
    except ValueError as error:
        raise CheckFailed("every cell has a number of its own", str(error), "other numbers") from None


def _descent_parts(
    reference: str, arms: Mapping[str, ArmFacts], differences: Sequence[Comparison]
) -> list[DescentPart]:
    """Of each arm with the published descent that has a corrected one beside it."""
    descents = {name: arm.mining.descent for name, arm in arms.items() if arm.mining.uses_descent}
    found = {(one.arm, one.reference): one for one in differences}
    return [
        DescentPart(
            published=one.arm,
            corrected=one.reference,
            whole=found[one.arm, reference].percent or 0.0,
            without=found[one.reference, reference].percent or 0.0,
            shown=one.better or one.worse,
        )
        for one in differences
        if (descents.get(one.arm), descents.get(one.reference)) == ("as-published", "corrected")
    ]


def _early_stops(config: ReportConfig, arms: Mapping[str, ArmFacts]) -> list[EarlyStop]:
    """Of trainings that themselves ended with some patience, only what less of it would have kept can be told."""
    own = config.configuration["budget"].get("patience_validations") or math.inf
    return [early_stop(name, arm, patience) for name, arm in arms.items() for patience in PATIENCES if patience < own]


def early_stop(name: str, arm: ArmFacts, patience: int) -> EarlyStop:
    """By the validations of the whole trainings: nothing is trained again for it."""
    found = [stopped(points, patience) for points in arm.validations.values()]
    step, error = (float(np.mean(values)) for values in zip(*found, strict=True))
    return EarlyStop(arm=name, patience=patience, step=step, error=error, whole_error=arm.mean)


def stopped(points: Sequence[Sequence[float]], patience: int) -> tuple[float, float]:
    """Of validations [step, error]: the step at which a training with this patience ends, and the error it keeps."""
    best, since = math.inf, 0
    for step, error in points:
        best, since = (error, 0) if error < best else (best, since + 1)
        if since == patience:
            return step, best
    return points[-1][0], best
