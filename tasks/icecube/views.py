"""The tables and figures of the direction study. A row of numbers ends with the name of the run that they came from."""

from collections.abc import Sequence

from tasks.findings.document import Figure
from tasks.findings.figures import Estimated, forest
from tasks.findings.table import Table
from tasks.findings.trainings import training_curves
from tasks.icecube.final_results import NORMALISED, RAW, FinalResults, TrialFacts
from tasks.icecube.words import degrees, ended, trial_verdict
from tasks.training.trials.findings import Failure

EVENTS_SHOWN = 3
WAYS: tuple[tuple[str, ...], ...] = ((), ("inputs",))
"""The trials whose way is drawn, by what they change."""


def trial_table(results: FinalResults) -> Table:
    rows = []
    for name, trial in results.trials.items():
        largest = max(seed.gradient_norm_max for seed in trial.seeds.values())
        run = results.run_of(f"{name}-{trial.seed}")
        rows.append([name, changes(trial), trial_verdict(trial), ended(trial), f"{largest:.3g}", run])
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


def failure_table(results: FinalResults) -> Table:
    rows = []
    for name, trial in results.trials.items():
        for seed, failed in trial.seeds.items():
            if (failure := failed.failure) is not None:
                run, module = results.run_of(f"{name}-{seed}"), failure.module or "-"
                rows.append([name, seed, failure.step, failure.tensor, module, _events(failure), run])
    return Table(
        "Every trial that ended in numbers that are not finite: the step, the tensor, the module where it began, and "
        "the events with which it fails alone, of how many in the step.",
        ["trial", "seed", "step", "not finite", "begins in", "events", "run"],
        rows,
    )


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
        numbers = ["-" if value is None else f"{value:,.6g}" for value in raw]
        ends = [f"{end:.3g}" for end in results.normalised[column.name]]
        rows.append([column.name, *numbers, column.not_finite, *ends, results.run_of("look")])
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


def figures(results: FinalResults) -> dict[str, Figure]:
    """File name -> figure."""
    caption = (
        "The mean angle at each validation: of the training, and of some trials the seed that came furthest, of "
        "several the worst."
    )
    ways = training_curves(caption, _ways(results), "mean angle (degrees)", degrees)
    return {"answer": _answer(results), "ways": ways}


def _answer(results: FinalResults) -> Figure:
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


def _ways(results: FinalResults) -> dict[str, Sequence[Sequence[float]]]:
    points: dict[str, Sequence[Sequence[float]]] = {"the training": results.training.course.validations}
    names = {tuple(trial.changes): name for name, trial in results.trials.items()}
    for name in filter(None, map(names.get, WAYS)):
        if seeds := [trial for trial in results.trials[name].seeds.values() if trial.validations]:
            chosen = max(seeds, key=lambda seed: (len(seed.validations), seed.validations[-1][1]))
            points[f"{name}, seed {chosen.seed}"] = chosen.validations
    return points
