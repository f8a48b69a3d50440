"""aggregate: the study's tables, report and `final_results.json`, every number with the run it came from."""

from __future__ import annotations

from typing import Any

from storage import durable
from storage.records import read_records
from tasks.report import figures as drawing
from tasks.report.publish import publish, require_verified
from tasks.robustness import checks
from tasks.robustness.figures import figures
from tasks.robustness.provenance import provenance, sources
from tasks.robustness.report import report
from tasks.robustness.study import AggregateConfig
from tasks.robustness.summary import summary
from tasks.robustness.tables import tables
from tasks.stage.run import StageInput, StageRun
from tasks.statistics.effects import attack_effect, paired_effects
from tasks.statistics.losses import paired_difference

TRAININGS = {"base": "base", "baseline": "train-baseline", "monotonic": "train-monotonic"}
"""Model -> the stage that trained it."""

BASE_FACTS = ("architecture", "parameters", "source", "trained_check", "init_from")
"""What is told of the base model; `init_from` only where it began with the weights of another run."""

PAIRS = (("baseline", "base"), ("monotonic", "base"), ("monotonic", "baseline"))


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
) -> dict[str, Any]:
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
    checks.require_distinct_arms(baseline, monotonic)
    checks.require_equal_budgets(baseline, monotonic, config)
    records = {stage: _records(stages[stage]) for stage in ("evaluate", "uat", "hotflip")}
    attacks = {name: _attacked(name, stages[name], records[name], config) for name in ("uat", "hotflip")}
    how = config.evaluation
    results = {
        "study": config.study,
        "seeds": [config.seed],
        "models": evaluation.result["models"],
        "differences": [
            paired_difference(records["evaluate"], *pair, how.bootstrap_resamples, how.confidence_level)
            for pair in PAIRS
        ],
        "attacks": attacks,
        "arms": {"baseline": _arm(baseline, "base"), "monotonic": _arm(monotonic, "constrain")},
        "unequal_budgets_reason": config.unequal_budgets.reason if config.unequal_budgets else None,
        "constraint": monotonic.result["constraint"],
        "share_of_signs_changed": constrained.result["share_of_signs_changed"],
        "base": {key: base.result[key] for key in BASE_FACTS if key in base.result},
        "text": text.result["splits"],
        "text_proof": {
            key: text.result[key]
            for key in ("largest_shared_shingles", "duplicates_dropped_documents", "contaminated_dropped_documents")
        },
        "numerics_changes": {
            stage: given.result["numerics_changes"]
            for stage, given in stages.items()
            if "numerics_changes" in given.result
        },
        "numerics": {
            arm: durable.read_json(trained.run.stage_file)["numerics"]
            for arm, trained in (("baseline", baseline), ("monotonic", monotonic))
        },
        "runs": {stage: given.path.relative_to(run.run.root).as_posix() for stage, given in stages.items()},
        "provenance": provenance(stages),
        "configuration": config.configuration,
    }
    drawing.prepare(run.cache)
    drawn = figures(results, records, {arm: stages[stage] for arm, stage in TRAININGS.items()})
    texts = {
        "table.md": tables(results),
        "experiment_summary.txt": summary(results),
        "report.html": report(results, drawn, sources(stages)),
    }
    return publish(run, results, texts, {name: figure.svg for name, figure in drawn.items()})


def _records(given: StageInput) -> list[dict[str, Any]]:
    return list(read_records(given.path / "records.parquet"))


def _attacked(name: str, stage: StageInput, rows: list[dict[str, Any]], config: AggregateConfig) -> dict[str, Any]:
    """What an attack did to each model, the differences between models, and what it spent."""
    result, how = stage.result, config.evaluation
    checks.require_fair_attack(name, stage, rows, config.configuration[name])
    draws = None
    if name == "hotflip":
        draws = result["attack"]["control_draws"]
        checks.require_true_successes(name, rows, result["attack"]["success_relative_increase"], draws)
    else:
        checks.require_same_tokens(name, rows)
    settings = (how.bootstrap_resamples, how.confidence_level, draws)
    found = {
        "split": result["split"],
        "documents": result["documents"],
        "attack": result["attack"],
        "models": {model: result["models"][model] for model in checks.ATTACKED},
        "effects": {model: attack_effect(rows, model, *settings) for model in checks.ATTACKED},
        "differences": [paired_effects(rows, model, reference, *settings) for model, reference in PAIRS],
        "records_digest": result["records_digest"],
    }
    if name == "hotflip":
        made = {model: [row["flips"] for row in rows if row["model"] == model] for model in checks.ATTACKED}
        found["flips"] = {
            model: {"mean": sum(flips) / len(flips), "unchanged_documents": flips.count(0)}
            for model, flips in made.items()
        }
        found["round_trips_documents"] = {
            model: sum(row["round_trips"] for row in rows if row["model"] == model) for model in checks.ATTACKED
        }
    return found


def _arm(trained: StageInput, start: str) -> dict[str, Any]:
    """What one arm spent, and what came of it."""
    training = trained.result["training"]
    return {
        "start": start,
        **{key: training[key] for key in ("budget", "steps", "tokens_trained", "best_step")},
        "weights_digest": trained.result["weights_digest"],
    }
