"""The numbers of the direction study in words: generated from them, and no more than they show."""

from collections.abc import Collection, Sequence

from tasks.findings.final_results import numerics_changed
from tasks.icecube.final_results import NORMALISED, RAW, FinalResults, TrialFacts
from tasks.training.trials.findings import Ended

SCALING = (["inputs"], ["batch_norm"])
"""Changes of a trial that scale its inputs, and change nothing else."""
FAILURES: dict[Ended, str] = {"numerical_failure": "not finite", "not_learning": "not learning"}
MIN_SEEDS = 2
"""With fewer no cause is named."""
QUESTION = "Why did a network on raw detector pulses learn nothing for hours, and what heals it?"

OF_GENERATED = (
    "Events of our own generator are straight tracks with little else: how far an angle is from 0 there says nothing "
    "about real events. What fails and what heals is what is compared."
)
LIMITS = [
    "Every trial has the same short budget. One that learns slowly is not told from one that would never learn.",
    "A few seeds show what happens with these: a change that heals with all of them may fail with another one.",
    "The network is one transformer over the pulses of an event; that of the recorded study has two levels. Clipping, "
    "order of events, post-norm layers and raw inputs are the same; rate, batch and size are those of the profile.",
    "A training ends here at a step whose loss or gradients are not finite in fp32. The recorded study's clipping made "
    "all gradients 0 where the square of their norm overflows (above 1.8e+19); here that norm is computed in fp64.",
    "Scaling takes a logarithm of the charge, shifts and divides, all at once: which of these heals is not asked.",
    "Validation chooses the best step of the training, and its angle is reported on the same events. A trial is judged "
    "by its last step.",
]


def degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def span(values: Sequence[float]) -> str:
    """From the lowest to the highest, in degrees."""
    low, high = (degrees(value) for value in (min(values), max(values)))
    return f"{low} degrees" if low == high else f"{low} to {high} degrees"


def ended(trial: TrialFacts) -> str:
    """The end of a trial with each of its seeds, in words."""
    of = len(trial.seeds)
    parts = [f"{count} of {of} {words}" for how, words in FAILURES.items() if (count := trial.count(how))]
    if trial.angles:
        parts.append(f"{'' if len(trial.angles) == of else f'{len(trial.angles)} of {of} at '}{span(trial.angles)}")
    return ", ".join(parts)


def trial_verdict(trial: TrialFacts) -> str:
    """One word for a table."""
    if trial.healed:
        return "**healed**"
    return f"learned with {trial.learned_seeds} of {len(trial.seeds)}" if trial.learned_seeds else "did not learn"


HEALS = "scaling them alone heals, and nothing that leaves them raw does"


def verdict(results: FinalResults) -> str:
    """The answer in a line: that of the first case which holds."""
    control, healed = results.control, [name for name, trial in results.trials.items() if trial.healed]
    cases = [
        (not healed, "Not found: no trial healed the training."),
        (control and control.healed, "Nothing was to heal: as found the training learned."),
        (
            not _scaling_heals(results),
            f"Healed by {_listed(healed or ['none'])}; what was the cause is not told apart.",
        ),
        (
            control and len(control.seeds) < MIN_SEEDS,
            f"Perhaps raw inputs: {HEALS}, but with one seed no cause is named (trial_seeds).",
        ),
        (_raw_learned(results), f"Raw inputs were a cause, and not alone: {HEALS}."),
        (True, f"Raw inputs: {HEALS}."),
    ]
    return next(answer for holds, answer in cases if holds)


def lead(results: FinalResults) -> str:
    """The numbers behind it."""
    control, healed = results.control, {name: trial for name, trial in results.trials.items() if trial.healed}
    seeds = len(next(iter(results.trials.values())).seeds)
    with_seeds = f"with each of {seeds} seeds" if seeds > 1 else "with its one seed"
    trivial = f"the best constant direction gets {degrees(results.trivial_degrees)}"
    as_found = f"; as found: {ended(control)}" if control and not control.healed else ""
    if not healed:
        return f"No trial comes below {results.healed_ratio:g} of the trivial angle {with_seeds} ({trivial}){as_found}."
    answer = f"Healed by {_listed(healed)}, {with_seeds}, at {_reached(healed)} ({trivial}){as_found}."
    if (learned := _raw_learned(results)) and _scaling_heals(results):
        answer += f" With {_listed(learned)} it learned from raw inputs too, in the same time to {_reached(learned)}."
    return answer


def numbers(results: FinalResults) -> list[str]:
    """Up to three of them, each in a line."""
    healed = [f"{name}: {ended(trial)}" for name, trial in results.trials.items() if trial.healed]
    return [
        f"the network that was trained: mean {degrees(results.training.mean_degrees)} degrees, one seed; constant "
        f"direction {degrees(results.trivial_degrees)}",
        *([f"as found: {ended(results.control)}"] if results.control else []),
        *(["healed: " + "; ".join(healed)] if healed else []),
    ]


def not_shown(results: FinalResults) -> list[str]:
    """Trials that did not heal, or say nothing, and what the study is not."""
    rest = {name: trial for name, trial in results.trials.items() if not trial.healed and trial is not results.control}
    unscaled, scaled = (
        "; ".join(f"{name} ({ended(trial)})" for name, trial in rest.items() if trial.scales_inputs == scales)
        for scales in (False, True)
    )
    bundles = [name for name, trial in results.trials.items() if len(trial.changes) > 1]
    return [
        *([f"Not healed by {unscaled}."] if unscaled else []),
        *([f"Nor by {scaled}, although the inputs are scaled there too."] if scaled else []),
        *([f"Of one change alone {_listed(bundles)} say nothing: several are made there at once."] if bundles else []),
        *([OF_GENERATED] if results.source == "generated" else []),
        LIMITS[0],
    ]


def _scaling_heals(results: FinalResults) -> bool:
    """Scaling the inputs heals, and nothing else does, each trial against the one as found."""
    alone, raw = [trial for trial in results.trials.values() if trial.changes in SCALING], _raw(results).values()
    return (
        bool(results.control and alone and raw)
        and all(trial.healed for trial in alone)
        and not any(trial.healed for trial in raw)
    )


def _raw(results: FinalResults) -> dict[str, TrialFacts]:
    """The trials on raw inputs but the one as found."""
    others = (item for item in results.trials.items() if item[1] is not results.control)
    return {name: trial for name, trial in others if not trial.scales_inputs}


def _raw_learned(results: FinalResults) -> dict[str, TrialFacts]:
    """The trials on raw inputs that learned with every seed."""
    return {name: trial for name, trial in _raw(results).items() if trial.learned_all}


def about_rates(results: FinalResults) -> list[str]:
    """The recommendation for each kind of inputs, and whether one holds for the other."""
    points = [f"{inputs.capitalize()} inputs: {results.recommended_because[inputs]}." for inputs in (RAW, NORMALISED)]
    raw, normalised = results.recommended[RAW], results.recommended[NORMALISED]
    if normalised is not None and raw != normalised:
        tried = "none that was tried can be recommended" if raw is None else f"it is {raw:g}"
        points.append(
            f"**What is found about the rate on raw inputs holds for raw inputs only:** there {tried}, and on "
            f"normalised ones it is {normalised:g}."
        )
    return points + [
        f"The rate {trial.worst.learning_rate:g} of the trial {name} was not too high for normalised inputs: there it "
        "learns with every seed."
        for name, trial in results.trials.items()
        if trial.healed and trial.changes == ["inputs"]
    ]


def about_training(results: FinalResults) -> list[str]:
    trained, batch = results.training, results.overfit
    return [
        f"**Mean angle {degrees(trained.mean_degrees)} degrees, median {degrees(trained.median_degrees)}**, on "
        f"{results.splits['validation'].events:,} events of validation.",
        f"The best constant direction gets {degrees(results.trivial_degrees)}; the mean is "
        f"{trained.mean_degrees / results.trivial_degrees:.3f} of it. One seed ({results.seed}), run "
        f"{results.run_of('trained')}.",
        f"The rate {trained.learning_rate:g}: {trained.rate_because}.",
        f"One batch of {batch.events} events was fitted first, to {degrees(batch.after)} degrees. That shows little: "
        "the recorded study's raw inputs passed it too.",
    ]


def facts(results: FinalResults) -> list[str]:
    """Facts that a reader must know before the numbers."""
    train, validation = results.splits["train"], results.splits["validation"]
    made = "of our own generator" if results.source == "generated" else "from files"
    seeds = ", ".join(next(iter(results.trials.values())).seeds)
    return [
        f"{train.events:,} events to train on and {validation.events:,} to validate on, {made}, in files of their own; "
        f"{len(results.trials)} trials with the seeds {seeds}.",
        *(
            f"{len(ids):,} events of {name} were left out (events.skip_bad_events): {what}."
            for name, split in results.splits.items()
            for what, ids in split.skipped.items()
        ),
        f"A trial is healed when its last validation is at {results.healed_ratio:g} of the trivial angle or less with "
        f"every seed; it has learned where that is at {results.learned_ratio:g} or less.",
        f"Raw inputs were given on purpose: {results.raw_inputs_reason}.",
        *([f"Inputs are taken as large as they are: {results.reason_for_more}."] if results.reason_for_more else []),
        *numerics_changed(results.numerics_changes),
    ]


def _listed(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _reached(trials: dict[str, TrialFacts]) -> str:
    return span([angle for trial in trials.values() for angle in trial.angles])
