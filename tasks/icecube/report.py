"""icecube-report: what was the cause and what was not, every number with the run that it came from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import get_args

from storage.errors import require_distinct, require_equal
from tasks.findings.audit import require_audited
from tasks.findings.document import Document, Figure, Section
from tasks.findings.provenance import provenance, run_directories
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.icecube.checks import require_events, require_overfit, require_training, require_trial
from tasks.icecube.configuration import Inputs
from tasks.icecube.figures import figures
from tasks.icecube.final_results import FinalResults, TrainingFacts, TrialFacts
from tasks.icecube.rate_records import rate_rows, recommendation
from tasks.icecube.results import LookResult, OverfitResult, PulsesResult, RatesResult, TrainResult, TrialResult
from tasks.icecube.stages import AUDIT_TOLERANCE, AUDITED, ReportConfig
from tasks.icecube.study import trial_role
from tasks.icecube.tables import failure_table, input_table, rate_table, recorded_table, training_table, trial_table
from tasks.icecube.words import LIMITS, QUESTION, about_rates, about_training, facts, lead, not_shown, numbers, verdict
from tasks.stage.run import StageInput, StageRun

LEARNED_RATIO = 0.9
"""A network that ends above this share of the trivial angle has learned nothing that chance would not show."""
WORST = ("finished", "not_learning", "numerical_failure")


def report(run: StageRun, config: ReportConfig, **given: StageInput) -> Published:
    """Verifies every byte that it reads; `given` are the stages by the names that the page gives them."""
    require_verified(given)
    results = _results(config, given, run)
    return publish_report(run, given, results, document(results, figures(results, given)))


def document(results: FinalResults, drawn: Mapping[str, Figure]) -> Document:
    """What the report says."""
    failures = failure_table(results)
    return Document(
        f"{results.study}: what kept the network from learning?",
        verdict(results),
        lead(results),
        numbers(results),
        drawn["answer"],
        not_shown(results),
        QUESTION,
        facts(results),
        [
            Section(
                "The trials",
                texts=[
                    "Each is the training as it was found, at the size of this profile, with what is given beside its "
                    "name. That it fails is a result."
                ],
                figures=[drawn["ways"]] if "ways" in drawn else [],
                tables=[trial_table(results), *([failures] if failures.rows else [])],
            ),
            Section(
                "The inputs",
                texts=[
                    "Read once over the train split. Not finite values, constant columns and, after normalising, "
                    "values beyond the limit end the study before anything is trained."
                ],
                tables=[input_table(results)],
            ),
            Section(
                "The learning rates",
                points=about_rates(results),
                figures=[drawn["rates"]],
                tables=[rate_table(results), recorded_table()],
            ),
            Section(
                "The training",
                points=about_training(results),
                figures=[drawn["training"]],
                tables=[training_table(results)],
            ),
            Section("Limits", points=LIMITS),
        ],
    )


def _results(config: ReportConfig, given: Mapping[str, StageInput], run: StageRun) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    pulses, look = PulsesResult.read(given["events"]), LookResult.read(given["look"])
    rates = {inputs: RatesResult.read(given[f"rates-{inputs}"]) for inputs in get_args(Inputs)}
    trained, overfit = TrainResult.read(given["trained"]), OverfitResult.read(given["overfit"])
    trivial = look.trivial.best_constant_degrees
    require_events(given["events"], pulses, look)
    require_overfit(given["overfit"], overfit)
    trials = {}
    for name in config.trials:
        roles = {seed: trial_role(name, seed) for seed in config.trial_seeds}
        found = {seed: TrialResult.read(given[role]) for seed, role in roles.items()}
        for seed, one in found.items():
            require_trial(f"{name}, seed {seed}", given[roles[seed]], one, pulses, trivial)
        trials[name] = _trial(name, [*found.values()], config, trivial)
    _require_distinct(trials)
    for inputs, table in rates.items():
        _require_rows(given[f"rates-{inputs}"], table, config.configuration["rates"]["rates"])
    recommended = {inputs: recommendation(found.rows, config.rate_limits) for inputs, found in rates.items()}
    require_training(given["trained"], trained, pulses, look)
    if config.configuration["take_recommended_rate"]:
        rate = recommended["normalised"].rate
        require_equal("the training took the rate that is recommended", trained.learning_rate, rate)
    training = trained.training
    return FinalResults(
        study=config.study,
        events=pulses.source,
        splits={"train": pulses.train, "validation": pulses.validation},
        trivial=look.trivial,
        inputs=look.columns,
        normalised=look.normalised,
        scaling=look.scaling,
        raw_inputs_reason=config.raw_inputs_reason,
        reason_for_more=config.reason_for_more,
        trials=trials,
        healed_ratio=config.healed_ratio,
        learned_ratio=LEARNED_RATIO,
        rates={inputs: found.rows for inputs, found in rates.items()},
        rate_steps=rates["raw"].steps,
        recommended={inputs: one.rate for inputs, one in recommended.items()},
        recommended_because={inputs: one.because for inputs, one in recommended.items()},
        overfit=overfit,
        training=TrainingFacts(
            seed=config.configuration["seed"],
            steps=training["steps"],
            best_step=training["best_step"],
            ratio_to_trivial=trained.mean_degrees / trivial,
            **{name: getattr(trained, name) for name in TRAINED},
        ),
        audit=require_audited(given["audit"], AUDITED, AUDIT_TOLERANCE),
        numerics_changes={name: one.numerics_changes for name, one in given.items() if one.numerics_changes},
        runs=run_directories(given, run.run.root),
        provenance=provenance(given),
        configuration=config.configuration,
    )


TRAINED = (
    "parameters", "learning_rate", "rate_because", "mean_degrees", "median_degrees", "outputs", "largest_difference",
    "weights_digest",
)  # fmt: skip


def _trial(name: str, by_seed: list[TrialResult], config: ReportConfig, trivial: float) -> TrialFacts:
    """The trial over its seeds; the worst one stands for it."""

    def angle(one: TrialResult) -> float:
        found = one.validation_angle_degrees
        return math.inf if found is None or one.ended == "numerical_failure" else found

    worst = max(by_seed, key=lambda one: (WORST.index(one.ended), angle(one)))
    shown = ("trained", "learning_rate", "warmup_ratio", "seed", "ended", "validation_angle_degrees", "step", "tensor")
    return TrialFacts(
        changes=config.changes[name],
        **{name: getattr(worst, name) for name in (*shown, "module", "event_ids")},
        gradient_norm_max=max(one.gradient_norm_max for one in by_seed),
        healed=all(one.ended == "finished" and angle(one) <= config.healed_ratio * trivial for one in by_seed),
        learned_seeds=sum(one.ended == "finished" and angle(one) <= LEARNED_RATIO * trivial for one in by_seed),
        seeds={str(one.seed): one for one in by_seed},
    )


def _require_distinct(trials: Mapping[str, TrialFacts]) -> None:
    """CheckFailed for two trials with equal numbers: what one of them changes has not reached its training.

    Trials without a validation are left out: two that fail in their first steps may well have the same few numbers.
    """
    known = {
        f"{name} with seed {seed}": one
        for name, trial in trials.items()
        for seed, one in trial.seeds.items()
        if one.validations
    }
    for name, one in known.items():
        last = one.validations[-1][1]
        require_equal(f"{name} is judged by its last validation", one.validation_angle_degrees, last)
    require_distinct(
        "every trial has numbers of its own",
        {name: (one.seed, one.gradient_norm_max, *map(tuple, one.validations)) for name, one in known.items()},
        "the same validations and gradients",
        "What one of them changes does not reach its training: look at the configuration of both",
    )


def _require_rows(given: StageInput, found: RatesResult, rates: list[float]) -> None:
    """CheckFailed unless there is a row for each of `rates`, and it follows from the records."""
    require_equal("the table has a row for each rate", [row.rate for row in found.rows], rates)
    for row, again in zip(found.rows, rate_rows(given.path, rates), strict=True):
        require_equal(f"the row of the rate {row.rate:g} follows from the records", row, again)
