"""The numbers of the direction study in words: generated from them, and no more than they show."""

from __future__ import annotations

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
    "The network is one transformer over the pulses of an event, not the two-level one of the recorded study, whose "
    "clipping, order of events, post-norm layers and raw inputs it shares. Rate, batch and size are those of the "
    "profile.",
    "A training ends here at a step whose loss or gradients are not finite in fp32. A norm of all gradients beyond "
    "fp32 (its square overflows above 1.8e+19) is computed in fp64 and clipped like any other; clipping as in the "
    "recorded study made all gradients 0 there.",
    "Scaling takes a logarithm of the charge, shifts and divides, all at once: which of these heals is not asked.",
    "Validation chooses the best step of the training, and its angle is reported on the same events: there is no third "
    "split. A trial is judged by its last step.",
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
    parts = [f"{count} of {of} {said}" for how, said in FAILURES.items() if (count := trial.count(how))]
    if trial.angles:
        parts.append(f"{'' if len(trial.angles) == of else f'{len(trial.angles)} of {of} at '}{span(trial.angles)}")
    return ", ".join(parts)


def trial_verdict(trial: TrialFacts) -> str:
    """One word for a table."""
    if trial.healed:
        return "**healed**"
    return f"learned with {trial.learned_seeds} of {len(trial.seeds)}" if trial.learned_seeds else "did not learn"


def verdict(results: FinalResults) -> str:
    """The answer in a line."""
    control, healed = results.control, [name for name, trial in results.trials.items() if trial.healed]
    if not healed:
        return "Not found: no trial healed the training."
    if control and control.healed:
        return "Nothing was to heal: as found the training learned."
    if not _scaling_heals(results):
        return f"Healed by {_listed(healed)}; what was the cause is not told apart."
    heals = "scaling them alone heals, and nothing that leaves them raw does"
    if control and len(control.seeds) < MIN_SEEDS:
        return f"Perhaps raw inputs: {heals}, but with one seed no cause is named (trial_seeds)."
    return f"Raw inputs were a cause, and not alone: {heals}." if _raw_learned(results) else f"Raw inputs: {heals}."


def lead(results: FinalResults) -> str:
    """The numbers behind it."""
    control, healed = results.control, {name: trial for name, trial in results.trials.items() if trial.healed}
    seeds = len(next(iter(results.trials.values())).seeds)
    with_seeds = f"with each of {seeds} seeds" if seeds > 1 else "with its one seed"
    trivial = f"the best constant direction gets {degrees(results.trivial_degrees)}"
    as_found = f"; as found: {ended(control)}" if control and not control.healed else ""
    if not healed:
        return f"No trial comes below {results.healed_ratio:g} of the trivial angle {with_seeds} ({trivial}){as_found}."
    said = f"Healed by {_listed(healed)}, {with_seeds}, at {_reached(healed)} ({trivial}){as_found}."
    if (learned := _raw_learned(results)) and _scaling_heals(results):
        said += f" With {_listed(learned)} it learned from raw inputs too, in the same time to {_reached(learned)}."
    return said


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
        *_with_dropout(results),
        *([OF_GENERATED] if results.events.source == "generated" else []),
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


def _with_dropout(results: FinalResults) -> list[str]:
    """Number of trainings on raw inputs that ended in numbers that are not finite, with dropout and without."""
    raw = [trial for trial in results.trials.values() if not trial.scales_inputs]
    (failed, with_it), (failed_without, without) = (
        (sum(trial.count("numerical_failure") for trial in some), sum(len(trial.seeds) for trial in some))
        for some in ([trial for trial in raw if trial.trained.dropout], [t for t in raw if not t.trained.dropout])
    )
    if not with_it or not without or failed * without == failed_without * with_it:
        return []
    return [
        f"On raw inputs {failed} of {with_it} trainings with dropout ended in numbers that are not finite, and "
        f"{failed_without} of {without} without it."
    ]


def about_rates(results: FinalResults) -> list[str]:
    """The recommendation for each kind of inputs, and whether one holds for the other."""
    said = [f"{inputs.capitalize()} inputs: {results.recommended_because[inputs]}." for inputs in (RAW, NORMALISED)]
    raw, normalised = results.recommended[RAW], results.recommended[NORMALISED]
    if normalised is not None and raw != normalised:
        tried = "none that was tried can be recommended" if raw is None else f"it is {raw:g}"
        said.append(
            f"**What is found about the rate on raw inputs holds for raw inputs only:** there {tried}, and on "
            f"normalised ones it is {normalised:g}."
        )
    return said + [
        f"The rate {trial.worst.learning_rate:g} of the trial {name} was not too high for normalised inputs: there it "
        "learns with every seed."
        for name, trial in results.trials.items()
        if trial.healed and trial.changes == ["inputs"]
    ]


def about_training(results: FinalResults) -> list[str]:
    trained, fit = results.training, results.overfit
    dead = ", ".join(f"{name} {share:.0%}" for name, share in trained.outputs.dead_shares.items())
    return [
        f"**Mean angle {degrees(trained.mean_degrees)} degrees, median {degrees(trained.median_degrees)}**, on "
        f"{results.events.validation.events:,} events of validation; the best constant direction gets "
        f"{degrees(results.trivial_degrees)}, so that this is {trained.mean_degrees / results.trivial_degrees:.3f} of "
        f"it. One seed ({results.seed}), run {results.run_of('trained')}.",
        f"The rate {trained.learning_rate:g}: {trained.rate_because}.",
        f"Predictions have {trained.outputs.spread_ratio:.2f} of the truth's spread (0: always the same direction); "
        f"dead units: {dead}.",
        "The same event alone, among others, padded and in chunks: predictions differ by at most "
        f"{trained.largest_difference:.1g} of a unit vector.",
        results.audit.in_words,
        f"One batch of {fit.fit.examples} events was fitted first, to {degrees(fit.fit.after)} degrees (required: "
        f"{degrees(fit.required_degrees)}); that shows little: the recorded study's raw inputs passed it too.",
    ]


def facts(results: FinalResults) -> list[str]:
    """Facts that a reader must know before the numbers."""
    splits = {"train": results.events.train, "validation": results.events.validation}
    made = "of our own generator" if results.events.source == "generated" else "from files"
    seeds = ", ".join(next(iter(results.trials.values())).seeds)
    return [
        f"{splits['train'].events:,} events to train on and {splits['validation'].events:,} to validate on, {made}, in "
        f"files of their own; {len(results.trials)} trials with the seeds {seeds}.",
        *(
            f"{len(ids):,} events of {name} were left out (events.skip_bad_events): {what}."
            for name, split in splits.items()
            for what, ids in split.skipped.items()
        ),
        f"A trial is healed when with every seed it comes to its end and its last validation is at "
        f"{results.healed_ratio:g} of the trivial angle or less, and has learned where that is at "
        f"{results.learned_ratio:g} or less.",
        f"Raw inputs were given on purpose: {results.raw_inputs_reason}.",
        *([f"Inputs are taken as large as they are: {results.reason_for_more}."] if results.reason_for_more else []),
        *numerics_changed(results.numerics_changes),
    ]


def _listed(names: Collection[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _reached(trials: dict[str, TrialFacts]) -> str:
    return span([angle for trial in trials.values() for angle in trial.angles])
