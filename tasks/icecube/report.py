"""icecube-report: what was the cause and what was not, every number with the run that it came from."""

from collections.abc import Mapping
from pathlib import Path

from tasks.findings.document import Document
from tasks.findings.final_results import of_runs
from tasks.findings.prose import Pieces, fill
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.icecube import views
from tasks.icecube.configuration import Inputs
from tasks.icecube.final_results import LEARNED_RATIO, FinalResults
from tasks.icecube.numbers import batch_of, gates, ranges, rates_of, recommendation, training_of, trial_facts, trial_of
from tasks.icecube.pulses import splits_of
from tasks.icecube.results import LookResult
from tasks.icecube.stages import AUDITED, LookConfig, PulsesConfig, ReportConfig, TrainConfig
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested


def report(run: StageRun, config: ReportConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(config, inputs, run)
    return publish_report(run, inputs, results, document(results))


def document(results: FinalResults) -> Document:
    """The report: answer, figures, tables."""
    pieces: Pieces = {
        "answer": views.answer(results),
        "trials": views.trial_table(results),
        "failures": views.failure_table(results),
        "inputs": views.input_table(results),
        "rates": views.rate_table(results),
    }
    words = (views.verdict, views.degrees, views.ended, views.listed, views.each, views.reached)
    return fill(Path(__file__).with_name("report.md"), results, pieces, **{word.__name__: word for word in words})


def final_results(config: ReportConfig, inputs: Mapping[str, StageInput], run: StageRun) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    splits, look = splits_of(inputs["events"]), LookResult.read(inputs["look"])
    trivial, training = look.trivial.best_constant_degrees, training_of(inputs, splits)
    batch, stages = batch_of(inputs["overfit"]), nested(inputs)
    seeds = {
        name: [
            trial_of(f"{name}, seed {seed}", stages[name][seed], splits["train"].events, trivial)
            for seed in config.trial_seeds
        ]
        for name in config.trials
    }
    kept = {"trained": training.course.best} | {
        f"{name}-{trial.seed}": trial.validation_angle_degrees
        for name, by_seed in seeds.items()
        for trial in by_seed
        if trial.validation_angle_degrees is not None
    }
    tables: dict[Inputs, StageInput] = {"raw": inputs["raw_rates"], "normalised": inputs["normalised_rates"]}
    recommended = {kind: recommendation(table, config.rates) for kind, table in tables.items()}
    return FinalResults(
        **of_runs(run, inputs, AUDITED, gates(inputs, kept, training, batch)),
        source=inputs["events"].configuration(PulsesConfig).events.source,
        splits=splits,
        columns=look.columns,
        normalised=ranges(inputs["look"]),
        scaling=inputs["look"].configuration(LookConfig).scaling,
        trivial=look.trivial,
        raw_inputs_reason=config.raw_inputs_reason,
        reason_for_more=config.limits.reason_for_more,
        trials={
            name: trial_facts(config.changes[name], by_seed, config.healed_ratio, trivial)
            for name, by_seed in seeds.items()
        },
        healed_ratio=config.healed_ratio,
        learned_ratio=LEARNED_RATIO,
        rates={kind: rates_of(table) for kind, table in tables.items()},
        rate_steps=config.rates.steps,
        recommended={kind: advice.rate for kind, advice in recommended.items()},
        recommended_because={kind: advice.because for kind, advice in recommended.items()},
        overfit=batch,
        seed=inputs["trained"].configuration(TrainConfig).seed,
        training=training,
    )
