"""icecube-report: what was the cause and what was not, every number with the run that it came from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import get_args

from storage.errors import require_equal
from tasks.findings.document import Document, Figure, Section
from tasks.findings.final_results import of_runs
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.icecube import checks, views, words
from tasks.icecube.configuration import Inputs
from tasks.icecube.final_results import FinalResults, TrialFacts
from tasks.icecube.results import LookResult, OverfitResult, PulsesResult, RatesResult, TrainResult, TrialResult
from tasks.icecube.stages import AUDITED, ReportConfig, TrainConfig
from tasks.icecube.study import trial_role
from tasks.stage.run import StageInput, StageRun

LEARNED_RATIO = 0.9
"""A network that ends above this share of the trivial angle has learned nothing that chance would not show."""
WORST = ("finished", "not_learning", "numerical_failure")
OF_THE_WORST = ("seed", "ended", "validation_angle_degrees", "step", "tensor", "event_ids")


def report(run: StageRun, config: ReportConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(config, inputs, run)
    drawn = views.figures(results, inputs["trained"].run.metrics_file)
    return publish_report(run, inputs, results, document(results, drawn))


def document(results: FinalResults, drawn: Mapping[str, Figure]) -> Document:
    """The report: answer, figures, tables."""
    failures = views.failure_table(results)
    return Document(
        f"{results.study}: what kept the network from learning?",
        words.verdict(results),
        words.lead(results),
        words.numbers(results),
        drawn["answer"],
        words.not_shown(results),
        words.QUESTION,
        words.facts(results),
        [
            Section(
                "The trials",
                texts=[
                    "Each is the training as it was found, at the size of this profile, with what is given beside its "
                    "name. That it fails is a result."
                ],
                figures=[drawn["ways"]] if "ways" in drawn else [],
                tables=[views.trial_table(results), *([failures] if failures.rows else [])],
            ),
            Section(
                "The inputs",
                texts=[
                    "Read once over the train split. Not finite values, constant columns and, after normalising, "
                    "values beyond the limit end the study before anything is trained."
                ],
                tables=[views.input_table(results)],
            ),
            Section(
                "The learning rates",
                points=words.about_rates(results),
                tables=[views.rate_table(results), views.RECORDED],
            ),
            Section("The training", points=words.about_training(results), figures=[drawn["training"]]),
            Section("Limits", points=words.LIMITS),
        ],
    )


def final_results(config: ReportConfig, inputs: Mapping[str, StageInput], run: StageRun) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    pulses, look = PulsesResult.read(inputs["events"]), LookResult.read(inputs["look"])
    trained, overfit = TrainResult.read(inputs["trained"]), OverfitResult.read(inputs["overfit"])
    trivial = look.trivial.best_constant_degrees
    checks.require_events(inputs["events"], pulses, look)
    checks.require_overfit(inputs["overfit"], overfit)
    trials = {}
    for name in config.trials:
        by_seed = []
        for seed in config.trial_seeds:
            stage = inputs[trial_role(name, seed)]
            by_seed.append(TrialResult.read(stage))
            checks.require_trial(f"{name}, seed {seed}", stage, by_seed[-1], pulses, trivial)
        trials[name] = trial_facts(config.changes[name], by_seed, config.healed_ratio, trivial)
    checks.require_distinct_trials({name: trial.seeds for name, trial in trials.items()})
    rates: dict[Inputs, RatesResult] = {}
    for kind in get_args(Inputs):
        rates[kind] = RatesResult.read(inputs[f"rates-{kind}"])
        checks.require_rates(inputs[f"rates-{kind}"], rates[kind], config.rates.rates)
    recommended = {kind: table.recommended(config.rates) for kind, table in rates.items()}
    if config.take_recommended_rate:
        rate = recommended["normalised"].rate
        require_equal("the training took the rate that is recommended", trained.learning_rate, rate)
    checks.require_training(inputs["trained"], trained, pulses, look)
    return FinalResults(
        **of_runs(run, inputs, AUDITED),
        events=pulses,
        look=look,
        trivial=look.trivial,
        raw_inputs_reason=config.raw_inputs_reason,
        reason_for_more=config.limits.reason_for_more,
        trials=trials,
        healed_ratio=config.healed_ratio,
        learned_ratio=LEARNED_RATIO,
        rates={kind: table.rows for kind, table in rates.items()},
        rate_steps=rates["raw"].steps,
        recommended={kind: advice.rate for kind, advice in recommended.items()},
        recommended_because={kind: advice.because for kind, advice in recommended.items()},
        overfit=overfit,
        seed=inputs["trained"].configuration(TrainConfig).seed,
        training=trained,
    )


def trial_facts(changes: list[str], by_seed: Sequence[TrialResult], healed_ratio: float, trivial: float) -> TrialFacts:
    """The trial over its seeds; the worst one stands for it."""

    def angle(trial: TrialResult) -> float:
        last = trial.validation_angle_degrees
        return math.inf if last is None or trial.ended == "numerical_failure" else last

    def seeds_below(ratio: float) -> int:
        return sum(trial.ended == "finished" and angle(trial) <= ratio * trivial for trial in by_seed)

    worst = max(by_seed, key=lambda trial: (WORST.index(trial.ended), angle(trial)))
    return TrialFacts(
        changes=changes,
        **{name: getattr(worst, name) for name in OF_THE_WORST},
        gradient_norm_max=max(trial.gradient_norm_max for trial in by_seed),
        healed=seeds_below(healed_ratio) == len(by_seed),
        learned_seeds=seeds_below(LEARNED_RATIO),
        seeds={str(trial.seed): trial for trial in by_seed},
    )
