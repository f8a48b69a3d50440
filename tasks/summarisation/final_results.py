"""The numbers of the report, after what can be computed again was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from storage.errors import require_equal
from storage.records import Rows
from tasks.attacks.comparisons import attack_findings, compared_pairs, primary, secondary, test_differences
from tasks.attacks.reading import ReadAttacks, records_of
from tasks.findings.final_results import of_runs
from tasks.findings.statistics.resampling import Estimate, estimate, sums_by_source
from tasks.language.checks import documents, require_evaluation, require_text
from tasks.language.result import BaseResult, PackedPairs, SetupResult
from tasks.monotonic.arm import BASE, BASELINE
from tasks.monotonic.checks import require_order, require_trainings
from tasks.monotonic.result import ArmFacts, ArmResult, OrderResult
from tasks.stage.run import StageInput, StageRun
from tasks.summarisation.results import METRICS, FinalResults, ModelFacts, OrderFacts, Rouge, SummariesResult
from tasks.summarisation.stages import AUDITED, ReportConfig


def final_results(
    run: StageRun, config: ReportConfig, inputs: Mapping[str, StageInput], read: ReadAttacks
) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    text, base = SetupResult.read(inputs["text"]), BaseResult.read(inputs[BASE])
    trained = {arm: ArmResult.read(inputs[arm]) for arm in config.arms}
    stages = {**inputs, **{f"train-{arm}": inputs[arm] for arm in config.arms}}
    require_text(text, inputs["text"])
    require_trainings(config.configuration, stages, text, base, trained)
    order, models = OrderResult.read(inputs["order"]), [BASE, *config.arms]
    require_order(order, records_of(inputs["order"]), models, config.constraint.variant)
    evaluation, rows = SummariesResult.read(inputs["evaluation"]), records_of(inputs["evaluation"])
    require_evaluation(evaluation, rows, documents(inputs["text"], "test"), models)
    how, pairs = config.evaluation, compared_pairs(config.arms)
    settings = (how.bootstrap_resamples, how.confidence_level)
    differences = test_differences(rows, pairs, how)
    attacks = {name: attack_findings(found, read.tried[name], pairs, how) for name, found in read.results.items()}
    arms = {name: ArmFacts.of(name, arm, trained[BASELINE], config.constraint) for name, arm in trained.items()}
    decides = config.primary.attack
    found = primary(config.primary, read.tried[decides], attacks[decides], arms, how)
    of_model = {name: [row for row in rows if row["model"] == name] for name in models}
    return FinalResults(
        **of_runs(run, inputs, AUDITED),
        seed=config.configuration["seed"],
        lead_words=evaluation.lead_words,
        trivial={
            name: Rouge(**_rouge(of_model[BASELINE], f"{name}_", *settings)) for name in ("lead", "other_summary")
        },
        models={
            name: ModelFacts(
                **_rouge(own, "", *settings),
                loss_nats_per_token=evaluation.models[name].loss_nats_per_token,
                another_loss_nats_per_token=_total(own, "another_loss_sum_nats") / _total(own, "another_tokens_scored"),
                copied_share=_total(own, "copied_share") / len(own),
            )
            for name, own in of_model.items()
        },
        arms=arms,
        differences=differences,
        rouge_differences=_rouge_differences(of_model, pairs, *settings),
        rouge_drops=_drops(records_of(inputs["rewritten"]), read, *settings),
        order={name: _order(of) for name, of in order.models.items()},
        attacks=attacks,
        primary=found,
        secondary=secondary(found, differences, attacks),
        trained_check=base.trained_check,
        parameters=base.parameters,
        architecture=base.architecture,
        splits=text.splits,
        packed={name: _of_pairs(packed) for name, packed in text.packed.items()},
        configuration=config.configuration,
    )


def _total(rows: Rows, column: str) -> float:
    return float(sum(row[column] for row in rows))


def _of_pairs(packed: Any) -> PackedPairs:
    require_equal("the text is packed as pairs", type(packed), PackedPairs)
    return packed


def _order(of: Any) -> OrderFacts:
    certificate = of.certificate
    worst = min(sublayer.worst_violation_found for sublayer in certificate.sublayers)
    return OrderFacts(
        verdict=certificate.certified,
        reason=certificate.sublayers[0].reason,
        activation=certificate.activation,
        worst_violation_found=worst,
    )


def _mean(rows: Rows, column: str, less: str, resamples: int, level: float) -> Estimate:
    """Mean of a column over pairs, less that of another (empty: of none), with whole sources resampled."""
    counted = [
        {
            "example_id": row["example_id"],
            "source": row["source"],
            "n": 1,
            "x": row[column] - (row[less] if less else 0),
        }
        for row in rows
    ]
    sums = sums_by_source(counted, ("x", "n"))
    return estimate(lambda x, n: x / n, [sums["x"], sums["n"]], resamples, level)


def _rouge(rows: Rows, name: str, resamples: int, level: float) -> dict[str, Estimate]:
    return {metric: _mean(rows, f"{name}{metric}", "", resamples, level) for metric in METRICS}


def _drops(rows: Rows, read: ReadAttacks, resamples: int, level: float) -> dict[str, dict[str, Estimate]]:
    """Attack -> model -> ROUGE-1 of the articles as they were less that under attack, of every attacked article."""
    found: dict[str, dict[str, Estimate]] = {}
    for attack, results in read.results.items():
        for model in results:
            own = [row for row in rows if (row["attack"], row["model"]) == (attack, model)]
            asked = sorted(row["example_id"] for row in read.strongest[attack][model])
            wrote = sorted(row["example_id"] for row in own)
            require_equal(f"{model} wrote of every article that {attack} attacked", wrote, asked)
            found.setdefault(attack, {})[model] = _mean(own, "clean_rouge1", "rouge1", resamples, level)
    return found


def _rouge_differences(
    rows: Mapping[str, Rows], pairs: Sequence[tuple[str, str]], resamples: int, level: float
) -> dict[str, Estimate]:
    """ROUGE-1 of a model less that of another on the same articles, and of every model less the first words'."""
    found = {}
    for model, reference in pairs:
        theirs = {row["example_id"]: row["rouge1"] for row in rows[reference]}
        both = [row | {"reference": theirs[row["example_id"]]} for row in rows[model]]
        found[f"{model} - {reference}"] = _mean(both, "rouge1", "reference", resamples, level)
    for model, own in rows.items():
        found[f"{model} - lead"] = _mean(own, "rouge1", "lead_rouge1", resamples, level)
    return found
