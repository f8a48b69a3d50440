"""What the numbers of the direction study say in words: generated from them, and no more than they show."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.icecube.final_results import NORMALISED, RAW, FinalResults, TrialFacts
from tasks.report.cautions import numerics_changed

MIN_SEEDS = 2
"""Of fewer no cause is named."""
QUESTION = "Why did a network on raw detector pulses learn nothing for hours, and what heals it?"

OF_GENERATED = (
    "Events of our own generator are straight tracks with little else: how far an angle is from 0 there says nothing "
    "about real events. What fails and what heals is what is compared."
)
LIMITS = [
    "Every trial has the same short budget. One that learns slowly is not told from one that would never learn.",
    "A few seeds show what happens with these: a change that heals with all of them may fail with another one.",
    "The network is one transformer over the pulses of an event, not the two-level one of the recorded study, whose "
    "rate, clipping, batch order, post-norm layers and raw inputs it shares.",
    "Validation chooses the best step of a training, and its angle is reported on the same events: there is no third "
    "split.",
]


def limits(results: FinalResults) -> list[str]:
    """What the study cannot show."""
    return [*([OF_GENERATED] if results.events == "generated" else []), *LIMITS]


def degrees(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def span(values: Sequence[float]) -> str:
    """From the lowest to the highest, in degrees."""
    low, high = (degrees(value) for value in (min(values), max(values)))
    return f"{low} degrees" if low == high else f"{low} to {high} degrees"


def ended(trial: TrialFacts) -> str:
    """How a trial ended with its seeds, in words."""
    of = len(trial.seeds)
    parts = [f"{count} of {of} not finite" for count in [trial.count("numerical_failure")] if count]
    parts += [f"{count} of {of} not learning" for count in [trial.count("not_learning")] if count]
    if trial.angles:
        parts.append(f"{'' if len(trial.angles) == of else f'{len(trial.angles)} of {of} at '}{span(trial.angles)}")
    return ", ".join(parts)


def verdict(trial: TrialFacts) -> str:
    """One word for a table."""
    if trial.healed:
        return "**healed**"
    return f"learned with {trial.learned_seeds} of {len(trial.seeds)}" if trial.learned_seeds else "did not learn"


def answer(results: FinalResults) -> list[str]:
    """What healed, whether that was the cause, and what did not heal."""
    healed = {name: trial for name, trial in results.trials.items() if trial.healed}
    rest = {name: trial for name, trial in results.trials.items() if not trial.healed}
    found, seeds = results.as_found, len(next(iter(results.trials.values())).seeds)
    with_seeds = f"with each of {seeds} seeds" if seeds > 1 else "with its one seed"
    as_found = f" As found: {ended(found)}." if found else ""
    trivial = f"the best constant direction gets {degrees(results.trivial.best_constant_degrees)}"
    if not healed:
        return [f"**No trial healed the training {with_seeds}** ({trivial}).{as_found}"]
    if found and found.healed:
        return [f"**Nothing was to heal: as found the training learned {with_seeds}**, {ended(found)} ({trivial})."]
    reached = [angle for trial in healed.values() for angle in trial.angles]
    said = [f"**Healed by {_listed(healed)}: {with_seeds} at {span(reached)}** ({trivial}).{as_found}{_cause(results)}"]
    others = [name for name in rest if name != "as-found"]
    if others:
        unscaled = [name for name in others if not rest[name].scales_inputs]
        slow = [name for name in others if rest[name].scales_inputs]
        if unscaled:
            said.append(f"Not healed by {_each(unscaled, rest)}.")
        if slow:
            said.append(
                f"{_each(slow, rest)} scale{'s' * (len(slow) == 1)} the inputs too, and did not get there within the "
                "budget: what else is changed there costs more than it gives."
            )
    return said


def _cause(results: FinalResults) -> str:
    """What the healed trials have in common; nothing where that is not the inputs, or nothing else was tried."""
    healed = [trial for trial in results.trials.values() if trial.healed]
    others = [trial for trial in results.trials.values() if not trial.scales_inputs]
    if not others or not all(trial.scales_inputs for trial in healed):
        return ""
    if len(healed[0].seeds) < MIN_SEEDS:
        return " Whatever healed scales the inputs. So few seeds show no cause: give more trial_seeds."
    return " Whatever healed scales the inputs: their size was the cause."


def about_rates(results: FinalResults) -> list[str]:
    """The recommendation for each kind of inputs, and whether one holds for the other."""
    said = [f"{inputs.capitalize()} inputs: {results.recommended_because[inputs]}." for inputs in (RAW, NORMALISED)]
    raw, normalised = results.recommended[RAW], results.recommended[NORMALISED]
    if normalised is not None and raw != normalised:
        tried = "no rate can be recommended" if raw is None else f"the rate is {raw:g}"
        said.append(
            f"**What is found about the rate on raw inputs holds for raw inputs only:** there {tried}, and on "
            f"normalised ones it is {normalised:g}."
        )
    healed = results.trials.get("normalise")
    if healed and healed.healed:
        said.append(
            f"The rate {healed.learning_rate:g} of the trial normalise was not too high for normalised inputs: there "
            "it learns with every seed."
        )
    return said


def about_training(results: FinalResults) -> list[str]:
    found = results.training
    dead = ", ".join(f"{name} {share:.0%}" for name, share in found.outputs.dead_shares.items())
    return [
        f"**Mean angle {degrees(found.mean_degrees)} degrees, median {degrees(found.median_degrees)}**, on "
        f"{results.splits['validation'].events:,} events of validation; the best constant direction gets "
        f"{degrees(results.trivial.best_constant_degrees)}. One seed ({found.seed}).",
        f"The rate {found.learning_rate:g}: {found.rate_because}.",
        f"Predictions have {found.outputs.spread_ratio:.2f} of the truth's spread (0: always the same direction); dead "
        f"units: {dead}.",
        "The same event alone, among others, padded and in chunks: predictions differ by at most "
        f"{found.largest_difference:.1g} of a unit vector.",
        f"One batch of {results.overfit.fit.examples} events was fitted first, to "
        f"{degrees(results.overfit.fit.after)} degrees (required: {degrees(results.overfit.required_degrees)}); as the "
        "recorded study saw, that shows little: its raw inputs passed it too.",
    ]


def facts(results: FinalResults) -> list[str]:
    """What a reader must know before the numbers."""
    train, validation = (results.splits[split].events for split in ("train", "validation"))
    made = "of our own generator" if results.events == "generated" else "from files"
    seeds = list(next(iter(results.trials.values())).seeds)
    return [
        f"{train:,} events to train on and {validation:,} to validate on, {made}, in files of their own; "
        f"{len(results.trials)} trials with the seeds {', '.join(seeds)}.",
        f"A trial is healed when with every seed it ends at {results.healed_ratio:g} of the trivial angle or less, and "
        f"has learned where it ends at {results.learned_ratio:g} of it or less.",
        f"Raw inputs were given on purpose: {results.raw_inputs_reason}.",
        *numerics_changed(results.numerics_changes),
    ]


def headline(results: FinalResults) -> str:
    """The answer in one line, for a list of studies."""
    healed = [name for name, trial in results.trials.items() if trial.healed]
    by = f"healed by {_listed(healed)}" if healed else "healed by no trial"
    return (
        f"{by}; trained to {degrees(results.training.mean_degrees)} degrees "
        f"(constant direction {degrees(results.trivial.best_constant_degrees)})"
    )


def _listed(names: Sequence[str] | dict[str, TrialFacts]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _each(names: Sequence[str], trials: dict[str, TrialFacts]) -> str:
    return "; ".join(f"{name} ({ended(trials[name])})" for name in names)
