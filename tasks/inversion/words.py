"""The numbers of the inversion study in words: generated from them, and no more than they show."""

from tasks.findings.arms import number_line, undecided_in_words
from tasks.findings.final_results import numerics_changed
from tasks.findings.numbers import percent
from tasks.findings.trainings import convergence_caution, learning_caution
from tasks.inversion.final_results import DescentPart, FinalResults
from tasks.inversion.results import NegativeFacts, Trivial

QUESTION = "Does mining adversarial negatives help an energy network that learns to invert matrices?"
RANK_10 = Trivial(zero=0.0584, mean=0.0343)
RANK_20 = Trivial(zero=0.02064, mean=0.01409)
RECORDED = {
    "pilot, called successful (rank 10)": (0.0688, RANK_10),
    "none, one seed (rank 20)": (0.0096761, RANK_20),
    "random, one seed (rank 20)": (0.00968396, RANK_20),
    "adversarial, one seed (rank 20)": (0.00982675, RANK_20),
}
"""Claims of the recorded study, beside what predicting zero and the mean get on matrices of that rank."""
RECORDED_CLAIM = (
    "The recorded study's differences of +0.08% (random) and +1.56% (adversarial) are of one seed each; the 5,632 "
    "matrices of its validation alone, which were others each time, move what predicting the mean gets by 0.23%. No "
    "run of this study stands behind its numbers."
)
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
    for name, error in sorted(trivial.by_name.items(), key=lambda item: -item[1]):
        if value >= error:
            return f"worse than {name} ({number(error)})"
    name, error = min(trivial.by_name.items(), key=lambda item: item[1])
    return f"{percent(round(value / error, 3))} of {name} ({number(error)})"


def lead(results: FinalResults) -> str:
    """The numbers behind it."""
    reference = results.arms[results.reference]
    differences = "; ".join(map(number_line, results.against_reference[:2]))
    return (
        f"The error of {results.reference} is {number(reference.mean)} (predicting the mean gets "
        f"{number(results.trivial.mean)}); {differences}."
    )


def not_shown(results: FinalResults) -> list[str]:
    """Differences that the seeds do not show, what they could have, and the part of one that is the descent."""
    parts = {(part.published, part.corrected) for part in results.descent_parts}
    others = [difference for difference in results.differences if (difference.arm, difference.reference) not in parts]
    return [
        *learning_caution(results),
        *undecided_in_words(others, results.min_seeds),
        *(descent(part, results.reference) for part in results.descent_parts),
        f"{convergence_caution(results)} Arms have equal steps, not equal time: what is mined costs more a step.",
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


def facts(results: FinalResults) -> list[str]:
    """Facts that a reader must know before the numbers."""
    trivial = ", ".join(f"{name} gets {number(error)}" for name, error in results.trivial.by_name.items())
    return [
        f"Matrices of rank {results.rank}; {results.splits['validation'].matrices:,} to validate on, the same for all "
        f"arms and seeds; {len(results.arms)} arms with the seeds {', '.join(map(str, results.seeds))}.",
        f"Without learning: {trivial}.",
        "Arms with equal seeds see equal matrices, times and noise: differences are paired. Of fewer than "
        f"{results.min_seeds} seeds nothing is called better.",
        *numerics_changed(results.numerics_changes),
    ]


def about_training(results: FinalResults) -> list[str]:
    """Checks of networks and descents beside their errors."""
    pilot = results.pilot
    return [
        f"The pilot, a short training without negatives, got {number(pilot.validation_mse)}: "
        f"{standing(pilot.validation_mse, results.trivial)}; {number(pilot.required_mse)} was required.",
        *(
            f"**The negatives of {name} depend on how matrices come** ({arm.descent_defect}): they differ by up to "
            f"{arm.descent_difference:.2g}."
            if arm.descent_defect
            else f"The negatives of {name} do not depend on how matrices come."
            for name, arm in results.arms.items()
            if arm.descent_difference is not None
        ),
    ]


def about_negatives(results: FinalResults) -> list[str]:
    """The three suspicions about hard negatives, each beside its number."""
    minings, every = {name: arm.mining for name, arm in results.arms.items()}, results.probe.negatives
    as_trained = [facts for facts in every if facts.descent_steps == minings[facts.arm].descent_steps]
    mined = [facts for facts in as_trained if minings[facts.arm].uses_descent] or as_trained or every
    worst = max(mined, key=lambda facts: facts.condition / facts.true_condition)
    false = max(mined, key=lambda facts: facts.false_share)
    low = max(mined, key=lambda facts: facts.below_share)
    alike = min(mined, key=lambda facts: facts.spread)
    return [
        f"Near-singular? The median condition number of negatives is at most {worst.condition:.3g} ({_place(worst)}), "
        f"that of the true inverses {worst.true_condition:.3g}.",
        f"Not wrong at all? At most {false.false_share:.1%} of them are false negatives; up to {low.below_share:.1%} "
        f"have a lower energy than the truth ({_place(low)}), there at "
        f"{low.distance:.2g} of the inverse's norm from it, with |A y - I| {low.residual:.3g}.",
        f"All alike? They spread at least {alike.spread:.2f} times as far as the inverses.",
    ]


def _place(facts: NegativeFacts) -> str:
    return f"{facts.arm}, t {facts.time}, {facts.descent_steps} steps"
