"""icecube-report: what was the cause and what was not, every number with the run that it came from."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from tasks.findings.document import Document, Figure
from tasks.findings.figures import Estimated, forest
from tasks.findings.final_results import of_runs
from tasks.findings.prose import Pieces, fill
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.table import Table
from tasks.icecube import final_results as numbers
from tasks.icecube.final_results import LEARNED_RATIO, NORMALISED, RAW, FinalResults, TrialFacts
from tasks.icecube.pulses import splits_of
from tasks.icecube.results import LookResult
from tasks.icecube.stages import AUDITED, LookConfig, PulsesConfig, ReportConfig, TrainConfig
from tasks.icecube.study import Inputs
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.trials.findings import Ended, Failure

EVENTS_SHOWN = 3
FAILURES: dict[Ended, str] = {"numerical_failure": "not finite", "not_learning": "not learning"}
MIN_SEEDS = 2
"""With fewer no cause is named."""
HEALS = "scaling them alone heals, and nothing that leaves them raw does"
degrees = "{:.1f}".format


def report(run: StageRun, config: ReportConfig, **inputs: StageInput) -> Published:
    """Verifies every byte that it reads; `inputs` are the stages by the names that the page gives them."""
    require_verified(inputs)
    results = final_results(config, inputs, run)
    return publish_report(run, inputs, results, document(results))


def document(results: FinalResults) -> Document:
    """The report: answer, figures, tables."""
    pieces: Pieces = {
        "answer": answer(results),
        "trials": trial_table(results),
        "failures": failure_table(results),
        "inputs": input_table(results),
        "rates": rate_table(results),
    }
    words = {word.__name__: word for word in (verdict, ended, listed, each, reached)}
    return fill(Path(__file__).with_name("report.md"), results, pieces, degrees=degrees, **words)


def final_results(config: ReportConfig, inputs: Mapping[str, StageInput], run: StageRun) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    splits, look = splits_of(inputs["events"]), LookResult.read(inputs["look"])
    trivial, training = look.trivial.best_constant_degrees, numbers.training_of(inputs, splits)
    batch, stages = numbers.batch_of(inputs["overfit"]), nested(inputs)
    seeds = {
        name: [
            numbers.trial_of(f"{name}, seed {seed}", stages[name][seed], splits["train"].events, trivial)
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
    recommended = {kind: numbers.recommendation(table, config.rates) for kind, table in tables.items()}
    return FinalResults(
        **of_runs(run, inputs, AUDITED, numbers.gates(inputs, kept, training, batch)),
        source=inputs["events"].configuration(PulsesConfig).events.source,
        splits=splits,
        columns=look.columns,
        normalised=numbers.ranges(inputs["look"]),
        scaling=inputs["look"].configuration(LookConfig).scaling,
        trivial=look.trivial,
        raw_inputs_reason=config.raw_inputs_reason,
        reason_for_more=config.limits.reason_for_more,
        trials={
            name: numbers.trial_facts(config.changes[name], by_seed, config.healed_ratio, trivial)
            for name, by_seed in seeds.items()
        },
        healed_ratio=config.healed_ratio,
        learned_ratio=LEARNED_RATIO,
        rates={kind: numbers.rates_of(table) for kind, table in tables.items()},
        rate_steps=config.rates.steps,
        recommended={kind: advice.rate for kind, advice in recommended.items()},
        recommended_because={kind: advice.because for kind, advice in recommended.items()},
        overfit=batch,
        seed=inputs["trained"].configuration(TrainConfig).seed,
        training=training,
    )


def reached(trials: Mapping[str, TrialFacts]) -> str:
    """From the lowest angle to the highest."""
    angles = [angle for trial in trials.values() for angle in trial.angles]
    low, high = degrees(min(angles)), degrees(max(angles))
    return f"{low} degrees" if low == high else f"{low} to {high} degrees"


def ended(trial: TrialFacts) -> str:
    """The end of a trial with each of its seeds, in words."""
    seeds, angles = len(trial.seeds), len(trial.angles)
    parts = [f"{count} of {seeds} {words}" for how, words in FAILURES.items() if (count := trial.count(how))]
    if angles:
        parts.append(f"{angles} of {seeds} at " * (angles < seeds) + reached({"": trial}))
    return ", ".join(parts)


def each(trials: Mapping[str, TrialFacts], form: str = "%s (%s)") -> str:
    return "; ".join(form % (name, ended(trial)) for name, trial in trials.items())


def listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def verdict(results: FinalResults) -> str:
    """The answer in a line: that of the first case which holds."""
    control = results.control
    cases = [
        (not results.healed, "Not found: no trial healed the training."),
        (control and control.healed, "Nothing was to heal: as found the training learned."),
        (
            not results.scaling_heals,
            f"Healed by {listed(results.healed or ['none'])}; what was the cause is not told apart.",
        ),
        (
            len(results.seeds) < MIN_SEEDS,
            f"Perhaps raw inputs: {HEALS}, but with one seed no cause is named (trial_seeds).",
        ),
        (results.learned_raw, f"Raw inputs were a cause, and not alone: {HEALS}."),
        (True, f"Raw inputs: {HEALS}."),
    ]
    return next(answer for holds, answer in cases if holds)


def trial_table(results: FinalResults) -> Table:
    rows = []
    for name, trial in results.trials.items():
        largest = max(seed.gradient_norm_max for seed in trial.seeds.values())
        run = results.run_of(f"{name}-{trial.seed}")
        learned = trial.learned_seeds and f"learned with {trial.learned_seeds} of {len(trial.seeds)}"
        judged = "**healed**" if trial.healed else learned or "did not learn"
        rows.append([name, changes(trial), judged, ended(trial), f"{largest:.3g}", run])
    return Table(
        "Each trial, by seeds: the mean angle on validation in degrees, at the end, of those that came to it, "
        "how the others ended, the largest finite gradient. The run is that of its worst seed.",
        ["trial", "what", "verdict", "ended", "largest gradient", "run"],
        rows,
    )


def changes(trial: TrialFacts) -> str:
    """A trial in words: its rate, and what else it has."""
    trained, warmup_ratio = trial.trained, trial.worst.warmup_ratio
    parts = [
        f"rate {trial.worst.learning_rate:g}",
        "normalised inputs" if trained.inputs == NORMALISED else "",
        "BatchNorm of the inputs" if trained.batch_norm else "",
        f"dropout {trained.dropout:g}" if trained.dropout else "",
        "shuffled" if trained.shuffle else "",
        f"warm-up over {warmup_ratio:.0%}" if warmup_ratio else "",
    ]
    return ", ".join(filter(None, parts))


def failure_table(results: FinalResults) -> Table | None:
    rows = []
    for name, trial in results.trials.items():
        for seed, failed in trial.seeds.items():
            if (failure := failed.failure) is not None:
                run, module = results.run_of(f"{name}-{seed}"), failure.module or "-"
                rows.append([name, seed, failure.step, failure.tensor, module, _events(failure), run])
    caption = (
        "Every trial that ended in numbers that are not finite: the step, the tensor, the module where it began, and "
        "the events with which it fails alone, of how many in the step."
    )
    return Table(caption, ["trial", "seed", "step", "not finite", "begins in", "events", "run"], rows) if rows else None


def _events(failure: Failure) -> str:
    ids = failure.examples
    if not ids:
        return "none: in a validation"
    if not failure.of_examples:
        return f"not found out, {len(ids)} in the step"
    if failure.together:
        return f"none alone, {len(ids)} together"
    more = f" and {len(ids) - EVENTS_SHOWN} more" if len(ids) > EVENTS_SHOWN else ""
    return f"{', '.join(map(str, ids[:EVENTS_SHOWN]))}{more} (of {failure.of_examples})"


def input_table(results: FinalResults) -> Table:
    rows = []
    for column in results.columns:
        raw = (column.minimum, column.maximum, column.mean, column.deviation)
        values = ["-" if value is None else f"{value:,.6g}" for value in raw]
        ends = [f"{end:.3g}" for end in results.normalised[column.name]]
        rows.append([column.name, *values, column.not_finite, *ends, results.run_of("look")])
    return Table(
        f"The {results.columns[0].count:,} pulses of train as the network gets them: raw values, and the ends of what "
        f"normalising ({results.scaling}) makes of them.",
        ["feature", "lowest", "highest", "mean", "deviation", "not finite", "normalised from", "to", "run"],
        rows,
    )


def rate_table(results: FinalResults) -> Table:
    rows = []
    for inputs in (RAW, NORMALISED):
        for row in results.rates[inputs]:
            changes = ["-" if value is None else f"{value:+.2f}" for value in (row.mean, row.low, row.high)]
            gradient, run = [f"{row.gradient_norm_max:.3g}", row.parameter], results.run_of(f"{inputs}_rates")
            rows.append([inputs, f"{row.rate:g}", row.seeds, row.failed, *changes, *gradient, run])
    return Table(
        f"Each rate, tried for {results.rate_steps} steps with several seeds: the change of the mean angle on "
        "the same events of validation, in degrees (below 0: a gain), of the seeds that came to an end, and the "
        "largest gradient with the parameter that had most of it.",
        ["inputs", "rate", "seeds", "not finite", "mean", "lowest", "highest", "largest gradient", "parameter", "run"],
        rows,
    )


def answer(results: FinalResults) -> Figure:
    """The end of each trial; one of which no seed came to its end has no dot, and its label says so."""
    rows, trivial = [], results.trivial_degrees
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
