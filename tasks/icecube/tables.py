"""The tables of the direction study. Every row of numbers ends with the name of the run that they came from."""

from __future__ import annotations

from tasks.findings.provenance import run_name
from tasks.findings.table import Table
from tasks.icecube.final_results import NORMALISED, RAW, FinalResults, TrialFacts
from tasks.icecube.results import TrialResult
from tasks.icecube.study import trial_role
from tasks.icecube.words import degrees, ended, trial_verdict

RECORDED = [
    ["1e-05", "1.1", "no", "stable but too slow"],
    ["3e-05", "312.8", "yes", "stable"],
    ["0.0001", "1.88", "yes", "optimal"],
    ["0.0003", "109.6", "yes", "borderline"],
    ["0.001", "432,542,528", "no", "explodes"],
]
"""Rate, largest gradient, whether the loss fell, and what was concluded: as the recorded study has it."""
EVENTS_SHOWN = 3


def run_of(results: FinalResults, role: str) -> str:
    return run_name(results.runs[role])


def trial_table(results: FinalResults) -> Table:
    return Table(
        "Each trial, by seeds: the mean angle on validation in degrees, at the end, of those that came to it, "
        "how the others ended, the largest finite gradient. The run is that of its worst seed.",
        ["trial", "what", "verdict", "ended", "largest gradient", "run"],
        [
            [
                name,
                changes(trial),
                trial_verdict(trial),
                ended(trial),
                f"{trial.gradient_norm_max:.3g}",
                run_of(results, trial_role(name, trial.seed)),
            ]
            for name, trial in results.trials.items()
        ],
    )


def changes(trial: TrialFacts) -> str:
    """What a trial was given: its rate, and what else it has."""
    given = trial.trained
    parts = [
        "normalised inputs" if given.inputs == NORMALISED else "",
        "BatchNorm of the inputs" if given.batch_norm else "",
        f"dropout {given.dropout:g}" if given.dropout else "",
        "shuffled" if given.shuffle else "",
        f"warm-up over {trial.warmup_ratio:.0%}" if trial.warmup_ratio else "",
    ]
    return ", ".join(filter(None, [f"rate {trial.learning_rate:g}", *parts]))


def failure_table(results: FinalResults) -> Table:
    return Table(
        "Every trial that ended in numbers that are not finite: the step, the tensor, the module where it began, and "
        "the events with which it fails alone, of how many in the step.",
        ["trial", "seed", "step", "not finite", "begins in", "events", "run"],
        [
            [name, seed, one.step, one.tensor, one.module or "-", _events(one),
             run_of(results, trial_role(name, int(seed)))]
            for name, trial in results.trials.items()
            for seed, one in trial.seeds.items()
            if one.ended == "numerical_failure"
        ],
    )  # fmt: skip


def _events(failed: TrialResult) -> str:
    ids = failed.event_ids
    if not ids:
        return "none: in a validation"
    if not failed.of_events:
        return f"not found out, {len(ids)} in the step"
    if failed.together:
        return f"none alone, {len(ids)} together"
    more = f" and {len(ids) - EVENTS_SHOWN} more" if len(ids) > EVENTS_SHOWN else ""
    return f"{', '.join(map(str, ids[:EVENTS_SHOWN]))}{more} (of {failed.of_events})"


def input_table(results: FinalResults) -> Table:
    rows = []
    for column in results.inputs:
        low, high = results.normalised[column.name]
        raw = (column.minimum, column.maximum, column.mean, column.deviation)
        numbers = ["-" if value is None else f"{value:,.6g}" for value in raw]
        rows.append([column.name, *numbers, column.not_finite, f"{low:.3g}", f"{high:.3g}", run_of(results, "look")])
    return Table(
        f"The {results.inputs[0].count:,} pulses of train as the network gets them: raw values, and the ends of what "
        f"normalising ({results.scaling}) makes of them.",
        ["feature", "lowest", "highest", "mean", "deviation", "not finite", "normalised from", "to", "run"],
        rows,
    )


def rate_table(results: FinalResults) -> Table:
    return Table(
        f"Each rate, tried for {results.rate_steps} steps with several seeds: the change of the mean angle on the same "
        "events of validation, in degrees (below 0: a gain), of the seeds that came to an end, and the largest "
        "gradient with the parameter that had most of it.",
        ["inputs", "rate", "seeds", "not finite", "mean", "lowest", "highest", "largest gradient", "parameter", "run"],
        [
            [
                inputs,
                f"{row.rate:g}",
                row.seeds,
                row.failed,
                *(("-" if value is None else f"{value:+.2f}") for value in (row.mean, row.low, row.high)),
                f"{row.gradient_norm_max:.3g}",
                row.parameter,
                run_of(results, f"rates-{inputs}"),
            ]
            for inputs in (RAW, NORMALISED)
            for row in results.rates[inputs]
        ],
    )


def recorded_table() -> Table:
    return Table(
        "The same as the recorded study has it (2025-10-05): raw inputs, 20 steps, one seed, judged on the moving "
        "batches. Another network on real events: no run of this study stands behind these numbers.",
        ["rate", "largest gradient", "loss falls", "concluded"],
        RECORDED,
    )


def training_table(results: FinalResults) -> Table:
    found, trivial = results.training, results.trivial.best_constant_degrees
    return Table(
        "The training with normalised inputs, beside what needs no learning: angles on validation, in degrees.",
        ["what", "mean angle", "of the trivial", "run"],
        [
            ["trained", degrees(found.mean_degrees), f"{found.ratio_to_trivial:.3f}", run_of(results, "trained")],
            ["best constant direction", degrees(trivial), "1.000", run_of(results, "look")],
        ],
    )
