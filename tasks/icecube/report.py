"""icecube-report: what was the cause and what was not, every number with the run that it came from."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from tasks.data.gate import ends
from tasks.findings.document import Document, Figure
from tasks.findings.figures import Estimated, forest
from tasks.findings.final_results import of_runs
from tasks.findings.prose import Pieces, fill
from tasks.findings.publish import Published, publish_report, require_verified
from tasks.findings.table import Table
from tasks.icecube import final_results as numbers
from tasks.icecube.final_results import LEARNED_RATIO, FinalResults, TrialFacts
from tasks.icecube.look import FIXED
from tasks.icecube.pulses import splits_of
from tasks.icecube.results import LookResult, OverfitResult
from tasks.icecube.stages import AUDITED, PulsesConfig, ReportConfig, TrainConfig
from tasks.icecube.study import Inputs
from tasks.stage.run import StageInput, StageRun
from tasks.stage.study import nested
from tasks.training.trials.findings import Ended

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
        "inputs": input_table(results),
        "rates": rate_table(results),
    }
    words = {word.__name__: word for word in (verdict, ended, listed, each, reached)}
    return fill(Path(__file__).with_name("report.md"), results, pieces, degrees=degrees, **words)


def final_results(config: ReportConfig, inputs: Mapping[str, StageInput], run: StageRun) -> FinalResults:
    """Every number of the study, after what can be computed again was."""
    splits, look = splits_of(inputs["events"]), LookResult.read(inputs["look"])
    trivial, training = look.trivial.best_constant_degrees, numbers.training_of(inputs, splits)
    stages = nested(inputs)
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
    return FinalResults(
        **of_runs(run, inputs, AUDITED, numbers.gates(inputs, config, kept, training)),
        source=inputs["events"].configuration(PulsesConfig).events.source,
        splits=splits,
        columns=look.columns,
        trivial=look.trivial,
        trials={
            name: numbers.trial_facts(config.changes[name], by_seed, config.healed_ratio, trivial)
            for name, by_seed in seeds.items()
        },
        healed_ratio=config.healed_ratio,
        learned_ratio=LEARNED_RATIO,
        rates={kind: numbers.rates_of(table) for kind, table in tables.items()},
        rate_steps=config.rates.steps,
        recommended={kind: numbers.recommendation(table, config.rates) for kind, table in tables.items()},
        overfit=OverfitResult.read(inputs["overfit"]),
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
    counts = Counter(seed.ended for seed in trial.seeds.values())
    parts = [f"{counts[how]} of {seeds} {words}" for how, words in FAILURES.items() if counts[how]]
    if angles:
        parts.append(f"{angles} of {seeds} at " * (angles < seeds) + reached({"": trial}))
    return ", ".join(parts)


def each(trials: Mapping[str, TrialFacts]) -> str:
    return "; ".join(f"{name} ({ended(trial)})" for name, trial in trials.items())


def listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def verdict(results: FinalResults) -> str:
    """The answer in a line: that of the first case which holds."""
    control = results.control
    learned_raw = any(trial.learned_seeds == len(trial.seeds) for trial in results.raw.values())
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
        (learned_raw, f"Raw inputs were a cause, and not alone: {HEALS}."),
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
        what = ", ".join(f"{key}: {value}" for key, value in trial.changes.items())
        failed = next((seed.failed for seed in trial.seeds.values() if seed.failed), "-")
        rows.append([name, what or "as found", judged, ended(trial), failed, f"{largest:.3g}", run])
    return Table(
        "Each trial, by seeds: the mean angle on validation in degrees, at the end, of those that came to it, "
        "how the others ended, what was not finite first, the largest finite gradient. The run: of its worst seed.",
        ["trial", "what", "verdict", "ended", "not finite", "largest gradient", "run"],
        rows,
    )


def input_table(results: FinalResults) -> Table:
    rows = []
    for column in results.columns:
        raw = (column.minimum, column.maximum, column.mean, column.deviation)
        values = ["-" if value is None else f"{value:,.6g}" for value in raw]
        normalised = [f"{end:.3g}" for end in ends(column, FIXED)]
        rows.append([column.name, *values, column.not_finite, *normalised, results.run_of("look")])
    return Table(
        f"The {results.columns[0].count:,} pulses of train as the network gets them: raw values, and the ends of what "
        f"normalising makes of them.",
        ["feature", "lowest", "highest", "mean", "deviation", "not finite", "normalised from", "to", "run"],
        rows,
    )


def rate_table(results: FinalResults) -> Table:
    rows = []
    for inputs, of_inputs in results.rates.items():
        for row in of_inputs:
            changes = ["-" if value is None else f"{value:+.2f}" for value in (row.mean, row.low, row.high)]
            largest, run = f"{row.gradient_norm_max:.3g}", results.run_of(f"{inputs}_rates")
            rows.append([inputs, f"{row.rate:g}", row.seeds, row.failed, *changes, largest, run])
    return Table(
        f"Each rate, tried for {results.rate_steps} steps with several seeds: the change of the mean angle on "
        "the same events of validation, in degrees (below 0: a gain), of the seeds that came to an end, and the "
        "largest gradient.",
        ["inputs", "rate", "seeds", "not finite", "mean", "lowest", "highest", "largest gradient", "run"],
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
