"""aggregate: the study's tables, report and `final_results.json`, every number with the run it came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from storage.records import read_records
from tasks.language.result import Training
from tasks.report import figures as drawing
from tasks.report.provenance import provenance, run_directories, sources
from tasks.report.publish import Published, publish, require_verified
from tasks.robustness import checks
from tasks.robustness.figures import figures
from tasks.robustness.final_results import (
    Arm,
    ArmNumerics,
    Arms,
    Attacks,
    BaseFacts,
    FinalResults,
    FlipsMade,
    HotFlipFindings,
    TextProof,
    UatFindings,
)
from tasks.robustness.report import report
from tasks.robustness.results import (
    BaselineResult,
    BaseResult,
    ConstrainResult,
    EvaluateResult,
    HotFlipResult,
    MonotonicResult,
    SetupResult,
    UatResult,
)
from tasks.robustness.study import AggregateConfig
from tasks.robustness.summary import summary
from tasks.robustness.tables import tables
from tasks.stage.run import StageInput, StageRun
from tasks.statistics.effects import attack_effect, paired_effects
from tasks.statistics.losses import paired_difference

TRAININGS = {"base": "base", "baseline": "train-baseline", "monotonic": "train-monotonic"}
"""Model -> the stage that trained it."""

PAIRS = (("baseline", "base"), ("monotonic", "base"), ("monotonic", "baseline"))

Rows = list[dict[str, Any]]


def aggregate(
    run: StageRun,
    config: AggregateConfig,
    text: StageInput,
    base: StageInput,
    constrained: StageInput,
    baseline: StageInput,
    monotonic: StageInput,
    evaluation: StageInput,
    uat: StageInput,
    hotflip: StageInput,
) -> Published:
    """Verifies every byte that it reads, and writes what the study found, as numbers, words and pictures.

    `table.md`, `experiment_summary.txt`, `report.html`, `figures/` and `final_results.json` are functions of the
    stages that it reads. Raises CheckFailed when these are not what the report would call them.
    """
    stages = {
        "setup": text,
        "base": base,
        "constrain": constrained,
        "train-baseline": baseline,
        "train-monotonic": monotonic,
        "evaluate": evaluation,
        "uat": uat,
        "hotflip": hotflip,
    }
    require_verified(stages)
    records = {stage: _records(stages[stage]) for stage in ("evaluate", "uat", "hotflip")}
    results = _results(config, stages, records, run.run.root)
    drawing.prepare(run.cache)
    trained = {model: stages[stage] for model, stage in TRAININGS.items()}
    if BaseResult.read(base).training is None:
        del trained["base"]
    drawn = figures(results, records, trained)
    texts = {
        "table.md": tables(results),
        "experiment_summary.txt": summary(results),
        "report.html": report(results, drawn, sources(stages)),
    }
    return publish(run, results, texts, {name: figure.svg for name, figure in drawn.items()})


def _results(
    config: AggregateConfig, stages: dict[str, StageInput], records: dict[str, Rows], root: Path
) -> FinalResults:
    """Every number of the study; CheckFailed when they are not what the report would call them."""
    text, base = SetupResult.read(stages["setup"]), BaseResult.read(stages["base"])
    constrained, evaluated = ConstrainResult.read(stages["constrain"]), EvaluateResult.read(stages["evaluate"])
    baseline = BaselineResult.read(stages["train-baseline"])
    monotonic = MonotonicResult.read(stages["train-monotonic"])
    uat, hotflip = UatResult.read(stages["uat"]), HotFlipResult.read(stages["hotflip"])
    checks.require_distinct_arms(baseline, monotonic)
    checks.require_equal_budgets(baseline, monotonic, config)
    how, origins = config.evaluation, provenance(stages)
    return FinalResults(
        study=config.study,
        seeds=[config.seed],
        models=evaluated.models,
        differences=[
            paired_difference(records["evaluate"], *pair, how.bootstrap_resamples, how.confidence_level)
            for pair in PAIRS
        ],
        attacks=Attacks(
            uat=_uat(uat, records["uat"], config),
            hotflip=_hotflip(hotflip, records["hotflip"], config),
        ),
        arms=Arms(
            baseline=_arm("base", baseline.training, baseline.weights_digest),
            monotonic=_arm("constrain", monotonic.training, monotonic.weights_digest),
        ),
        unequal_budgets_reason=config.unequal_budgets.reason if config.unequal_budgets else None,
        constraint=monotonic.constraint,
        share_of_signs_changed=constrained.share_of_signs_changed,
        base=BaseFacts(
            architecture=base.architecture,
            parameters=base.parameters,
            source=base.source,
            trained_check=base.trained_check,
            init_from=base.init_from,
        ),
        text=text.splits,
        text_proof=TextProof(
            largest_shared_shingles=text.largest_shared_shingles,
            duplicates_dropped_documents=text.duplicates_dropped_documents,
            contaminated_dropped_documents=text.contaminated_dropped_documents,
        ),
        numerics_changes={stage: given.numerics_changes for stage, given in stages.items() if given.numerics_changes},
        numerics=ArmNumerics(
            baseline=origins["train-baseline"].numerics, monotonic=origins["train-monotonic"].numerics
        ),
        runs=run_directories(stages, root),
        provenance=origins,
        configuration=config.configuration,
    )


def _records(given: StageInput) -> Rows:
    return list(read_records(given.path / "records.parquet"))


def _uat(found: UatResult, rows: Rows, config: AggregateConfig) -> UatFindings:
    checks.require_fair_attack("uat", found, rows, config.configuration["uat"])
    checks.require_same_tokens("uat", rows)
    return UatFindings(**_findings(found, rows, config))


def _hotflip(found: HotFlipResult, rows: Rows, config: AggregateConfig) -> HotFlipFindings:
    draws = found.attack.control_draws
    checks.require_fair_attack("hotflip", found, rows, config.configuration["hotflip"])
    checks.require_true_successes("hotflip", rows, found.attack.success_relative_increase, draws)
    flips = {model: [row["flips"] for row in rows if row["model"] == model] for model in checks.ATTACKED}
    return HotFlipFindings(
        **_findings(found, rows, config, draws),
        flips={
            model: FlipsMade(mean=sum(made) / len(made), unchanged_documents=made.count(0))
            for model, made in flips.items()
        },
        round_trips_documents={
            model: sum(row["round_trips"] for row in rows if row["model"] == model) for model in checks.ATTACKED
        },
    )


def _findings(
    found: UatResult | HotFlipResult, rows: Rows, config: AggregateConfig, control_draws: int | None = None
) -> dict[str, Any]:
    """What the attack did to each model, the differences between models, and what it cost."""
    resamples, level = config.evaluation.bootstrap_resamples, config.evaluation.confidence_level
    return {
        "split": found.split,
        "documents": found.documents,
        "attack": found.attack,
        "models": {model: found.models[model] for model in checks.ATTACKED},
        "effects": {model: attack_effect(rows, model, resamples, level, control_draws) for model in checks.ATTACKED},
        "differences": [
            paired_effects(rows, model, reference, resamples, level, control_draws) for model, reference in PAIRS
        ],
        "records_digest": found.records_digest,
    }


def _arm(start: Literal["base", "constrain"], training: Training, weights_digest: str) -> Arm:
    """What one arm spent, and what came of it."""
    return Arm(
        start=start,
        budget=training.budget,
        steps=training.steps,
        tokens_trained=training.tokens_trained,
        best_step=training.best_step,
        weights_digest=weights_digest,
    )
