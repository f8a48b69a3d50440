"""What is to be kept in mind of arms that were attacked: of one study, or over the cells of a sweep."""

import math
from collections.abc import Iterator, Mapping

from tasks.attacks.answer import shows_the_control
from tasks.attacks.configuration import BUDGET_SHARES
from tasks.attacks.final_results import AttackResults
from tasks.attacks.results import Findings, PrimaryAnswer
from tasks.findings.final_results import numerics_changed
from tasks.findings.numbers import NATS, estimate, percent
from tasks.findings.statistics.power import POWER, chance_of
from tasks.monotonic.arm import ALIVE_SHARE, CONTROL

STILL_GROWING = 0.05
"""An attack of which the last part of the budget found more than this share of the increase has not converged."""
LAST_PART = f"{1 - BUDGET_SHARES[-2]:.0%}"
"""The part of the budget of which it is asked what it still found."""


def cautions(results: AttackResults) -> Iterator[str]:
    """Those of one study, the gravest first."""
    for name in results.dead_arms:
        yield (
            f"**The constrained layers of {name} are dead:** {results.arms[name].dead}. What is measured of it is a "
            "network without these layers, whatever the signs of its weights."
        )
    for attack, findings in results.attacks.items():
        if weak := findings.beaten_by_blind_search:
            yield (
                f"**{attack}: the gradient search does not beat blind search at equal cost on {', '.join(weak)}.** Its "
                "gradients mislead there (masking): a small effect is no sign that the model withstands attacks."
            )
        if growing := still_growing(findings):
            yield (
                f"**{attack} has not converged:** the last {LAST_PART} of its budget, the same for every model, still "
                f"found this share of what the search on each model found: {listed(growing, '{:.0%}')}. A larger "
                "budget would find more, and may find another difference."
            )
    ratios = {name: arm.movement_ratio for name, arm in results.arms.items() if arm.movement_ratio is not None}
    if still := {name: ratio for name, ratio in ratios.items() if ratio < ALIVE_SHARE}:
        yield (
            f"**The constrained weights of {', '.join(still)} hardly moved** (median relative movement, as a share of "
            f"the baseline's: {listed(still, '{:.1%}')}): there the rest of the network was trained around them."
        )
    yield from numerics_changed(results.numerics_changes)


def still_growing(findings: Findings) -> dict[str, float]:
    """Models on which the search had not converged, each with the share of its increase that was found last."""
    shares = {}
    for model, effect in findings.effects.items():
        *_, before, last = (increase.value for increase in effect.budget_increases)
        if last > 0 and (last - before) / last > STILL_GROWING:
            shares[model] = (last - before) / last
    return shares


def listed(of_models: Mapping[str, float], form: str) -> str:
    return ", ".join(f"{model} {form.format(value)}" for model, value in of_models.items())


def could_be_seen(primary: PrimaryAnswer, added: float) -> Iterator[str]:
    """Power of the study, beside its margin and what the attack adds to the baseline.

    The margin is one of the loss: a factor e^margin of the perplexity under attack, whatever the attack adds.
    """
    margin = primary.primary.margin_nats_per_token
    if primary.answer and primary.answer.smallest_shown is not None and not primary.answer.too_few_sources:
        least = primary.answer.smallest_shown
        chance = f"{chance_of(margin, least, primary.answer.confidence_level):.0%}"
        of_margin = f" A difference of the margin's size is shown with a chance of about {chance}."
        both = f"{least / added:.1%} and {margin / added:.1%}" if added > 0 else ""
        shares = f"{both} of the {NATS(added)} that" if both else "beside what"
        yield (
            f"What could be seen: a true difference of {least:.4f} nats per token is shown with a chance of "
            f"{percent(POWER)}, a smaller one more seldom. It and the margin of {margin:g}, which is "
            f"{math.expm1(margin):.1%} of a perplexity, are {shares} the attack adds to the baseline."
            f"{of_margin * (least > margin)}"
        )


def of_control(primary: PrimaryAnswer) -> str:
    """Whether an arm that should be harder to attack is seen to be."""
    if primary.control is None:
        return (
            f"No positive control was compared (the arm {CONTROL}): nothing shows that an arm that is harder to attack "
            "would be seen here."
        )
    row = f"{CONTROL} - baseline {estimate(primary.control, NATS)}"
    if shows_the_control(primary):
        return f"The positive control is shown to be harder to attack ({row}): such a difference is seen here."
    return (
        f"**The positive control is not shown to be harder to attack** ({row}): that nothing is shown of another arm "
        "says little."
    )


def of_cells(cells: Mapping[str, AttackResults]) -> Iterator[str]:
    """Each caution once: whole where all cells have the same, else its beginning in bold, and in which cells."""
    named: dict[str, dict[str, str]] = {}
    for name, results in cells.items():
        for caution in cautions(results):
            named.setdefault(caution[: caution.index("**", 2)].rstrip(":"), {})[name] = caution
    for head, by_cell in named.items():
        same = len(by_cell) == len(cells) and len({*by_cell.values()}) == 1
        yield next(iter(by_cell.values())) if same else f"{head}** in {', '.join(by_cell)}."
