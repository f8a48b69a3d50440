"""What the numbers of the inversion study say in words: generated from them, and no more than they show."""

from __future__ import annotations

import numpy as np

from tasks.findings.arms import differences_in_words, number_line, undecided_in_words, why_not_shown
from tasks.findings.cautions import numerics_changed
from tasks.findings.numbers import percent
from tasks.findings.statistics.comparison import Comparison
from tasks.inversion.final_results import ArmFacts, DescentPart, FinalResults
from tasks.inversion.results import NegativeFacts, Trivial

QUESTION = "Does mining adversarial negatives help an energy network that learns to invert matrices?"
RECORDED = {
    "pilot, called successful (rank 10)": (0.0688, Trivial(zero=0.0584, mean=0.0343)),
    "none, one seed (rank 20)": (0.0096761, Trivial(zero=0.02064, mean=0.01409)),
    "random, one seed (rank 20)": (0.00968396, Trivial(zero=0.02064, mean=0.01409)),
    "adversarial, one seed (rank 20)": (0.00982675, Trivial(zero=0.02064, mean=0.01409)),
}
"""What the recorded study says of itself, beside what predicting zero and the mean get on matrices of that rank."""
EVALUATION_NOISE_PERCENT = 0.23
"""Of what predicting the mean gets, by the 5,632 matrices of its validation alone, which were others each time."""
DIVERGED = 1.05
LIMITS = [
    "Validation chooses the best step of each training, and its error is reported on the same matrices: there is no "
    "third split. All arms are treated so alike.",
    "The intervals are those of other seeds (initial weights, matrices, noise), for this network, budget and rank.",
    "What a larger network or a longer training would show is not known. Rate, batch and size are the profile's.",
    "An inverse is sought with the corrected descent, whatever a network was trained with: arms differ in training "
    "alone.",
    "Negatives are y: A is never mined. That the condition numbers of A are the same for both is so by construction, "
    "and what is looked at is the conditioning of y.",
]


def number(value: float) -> str:
    return f"{value:.4g}"


def standing(value: float, trivial: Trivial) -> str:
    """An error beside what needs no learning."""
    for name, known in sorted(trivial.by_name.items(), key=lambda item: -item[1]):
        if value >= known:
            return f"worse than {name} ({number(known)})"
    name, known = min(trivial.by_name.items(), key=lambda item: item[1])
    return f"{percent(round(value / known, 3))} of {name} ({number(known)})"


def verdict(results: FinalResults) -> str:
    """The answer in a line."""
    asked, reference = against_reference(results), results.reference
    if not results.arms[reference].learned:
        return f"Not shown: {reference} itself is not shown to learn."
    if all(one.unlearned for one in asked):
        return f"Not shown: {', '.join(one.arm for one in asked)} are not shown to learn."
    shown = [one for one in asked if one.better] or [one for one in asked if one.worse]
    if not shown:
        return why_not_shown(asked, results.min_seeds)
    return f"{'Yes' if shown[0].better else 'No'}: {differences_in_words(shown)}."


def against_reference(results: FinalResults) -> list[Comparison]:
    """The comparisons that answer: of arms with mined negatives, where there are any."""
    every = [one for one in results.differences if one.reference == results.reference]
    return [one for one in every if results.arms[one.arm].mining.uses_descent] or every


def lead(results: FinalResults) -> str:
    """The numbers behind it."""
    reference = results.arms[results.reference]
    differences = "; ".join(map(number_line, against_reference(results)[:2]))
    return (
        f"The error of {results.reference} is {number(reference.mean)} (predicting the mean gets "
        f"{number(results.trivial.mean)}); {differences}."
    )


def not_shown(results: FinalResults) -> list[str]:
    """What the seeds do not show, what they could have, and which part of a difference is the descent."""
    parts = {(part.published, part.corrected) for part in results.descent_parts}
    others = [one for one in results.differences if (one.arm, one.reference) not in parts]
    return [
        *unlearned(results),
        *undecided_in_words(others, results.min_seeds),
        *(descent(part, results.reference) for part in results.descent_parts),
        unconverged(results),
        LIMITS[2],
    ]


def descent(part: DescentPart, reference: str) -> str:
    """The part of a difference that is due to the published descent; a share of it only where the seeds show one."""
    said = (
        f"**The descent's part**: {part.published} differs from {reference} by {part.whole:+.2f}%, and "
        f"{part.corrected}, the same with the corrected descent, by {part.without:+.2f}%. The descent makes "
        f"{part.descent:+.2f}%"
    )
    if not part.shown:
        return f"{said}, which is not shown to differ from none."
    share = f", {part.descent / part.whole:.0%} of the difference" if 0 < part.descent / part.whole <= 1 else ""
    return f"{said}{share}, which the seeds show."


def unlearned(results: FinalResults) -> list[str]:
    names = [name for name, arm in results.arms.items() if not arm.learned]
    if not names:
        return []
    return [
        f"**Not shown to learn: {', '.join(names)}.** With some seed their error is above "
        f"{results.learned_ratio:g} of what needs no learning."
    ]


def facts(results: FinalResults) -> list[str]:
    """What a reader must know before the numbers."""
    validation = results.splits["validation"]
    return [
        f"Matrices of rank {results.rank}; {validation.matrices:,} to validate on, the same for all arms and seeds; "
        f"{len(results.arms)} arms with the seeds {', '.join(map(str, results.seeds))}.",
        f"Without learning: predicting zero gets {number(results.trivial.zero)}, predicting the mean "
        f"{number(results.trivial.mean)}.",
        "Arms with equal seeds see equal matrices, times and noise: differences are paired. Of fewer than "
        f"{results.min_seeds} seeds nothing is called better.",
        *numerics_changed(results.numerics_changes),
    ]


def about_training(results: FinalResults) -> list[str]:
    pilot = results.pilot
    said = [
        f"The pilot, a short training without negatives, got {number(pilot.validation_mse)}: "
        f"{standing(pilot.validation_mse, results.trivial)}; {number(pilot.required_mse)} was required.",
        "A matrix alone, among others, and in another order: predictions differ by at most "
        f"{results.largest_difference:.1g} (in fp64).",
        results.audit.in_words,
    ]
    for name, arm in results.arms.items():
        if arm.descent_difference is None:
            continue
        if arm.descent_defect:
            said.append(
                f"**The negatives of {name} depend on how matrices come** ({arm.descent_defect}): they differ by up to "
                f"{arm.descent_difference:.2g}."
            )
        else:
            said.append(f"The negatives of {name} do not depend on how matrices come.")
    return [
        *said,
        spread_of_clipping(results),
        *(diverged(name, arm) for name, arm in results.arms.items() if arm.late_divergence > DIVERGED),
    ]


def spread_of_clipping(results: FinalResults) -> str:
    shares = {name: float(np.mean([*arm.clipped_share.values()])) for name, arm in results.arms.items()}
    told = ", ".join(f"{share:.0%} of the steps of {name}" for name, share in shares.items())
    return (
        f"Gradients were clipped in {told}: "
        "arms that are clipped more often take other steps, whatever their negatives teach."
    )


def unconverged(results: FinalResults) -> str:
    """What a comparison at this budget is one of."""
    last = sum(arm.best_step[seed] == arm.last_step[seed] for arm in results.arms.values() for seed in arm.values)
    count = sum(len(arm.values) for arm in results.arms.values())
    told = "Arms have equal steps, not equal time: what is mined costs more a step."
    if 2 * last > count:
        return f"**{last} of {count} trainings were best at their last step**: how fast arms learn is compared. {told}"
    return f"{last} of {count} trainings were best at their last step. {told}"


def diverged(name: str, arm: ArmFacts) -> str:
    seed = max(arm.values, key=lambda seed: arm.last[seed] / arm.values[seed])
    return (
        f"**{name} diverges late**: with seed {seed} the error is {number(arm.values[seed])} at step "
        f"{arm.best_step[seed]:,}, which was kept, and {number(arm.last[seed])} at step {arm.last_step[seed]:,}."
    )


def about_negatives(results: FinalResults) -> list[str]:
    """The three suspicions about hard negatives, each beside its number."""
    found = results.probes.conditioning.negatives
    own = [one for one in found if one.descent_steps == results.arms[one.arm].mining.descent_steps]
    mined = [one for one in own if results.arms[one.arm].mining.uses_descent] or own or found
    worst = max(mined, key=lambda one: one.condition / one.true_condition)
    false = max(mined, key=lambda one: one.false_share)
    low = max(mined, key=lambda one: one.below_share)
    alike = min(mined, key=lambda one: one.spread)
    return [
        f"Near-singular? The median condition number of negatives is at most {worst.condition:.3g} ({place(worst)}), "
        f"that of the true inverses {worst.true_condition:.3g}.",
        f"Not wrong at all? At most {false.false_share:.1%} of them are false negatives; up to {low.below_share:.1%} "
        f"have a lower energy than the truth ({place(low)}), there at "
        f"{low.distance:.2g} of the inverse's norm from it, with |A y - I| {low.residual:.3g}.",
        f"All alike? They spread at least {alike.spread:.2f} times as far as the inverses.",
    ]


def place(one: NegativeFacts) -> str:
    return f"{one.arm}, t {one.time}, {one.descent_steps} steps"


def recorded_claims() -> list[str]:
    return [
        "The recorded study's differences of +0.08% (random) and +1.56% (adversarial) are of one seed each; the "
        f"matrices of its validation alone move what predicting the mean gets by {EVALUATION_NOISE_PERCENT}%. No run "
        "of this study stands behind its numbers.",
    ]
