"""Arms over seeds, told: the verdict, the numbers, what was not shown and the figures, for any study and any sweep.

`words` say what a lower and a higher value of an arm are: `BETTER` where lower is better, `LOWER` where nobody said so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from storage.errors import CheckFailed
from tasks.findings.comparison_table import SIGNED, percent_of
from tasks.findings.document import Figure
from tasks.findings.figures import Dots, Estimated, dots, forest
from tasks.findings.numbers import p_value, percent, span
from tasks.findings.statistics.comparison import ArmMean, Comparison, Pair, Values, compare_together
from tasks.findings.statistics.power import POWER

Words = tuple[str, str]
BETTER: Words = ("better", "worse")
LOWER: Words = ("lower", "higher")


def compare_arms(
    tables: Mapping[str, Values], pairs: Sequence[Pair], level: float, min_seeds: int, unlearned: Collection[str] = ()
) -> dict[str, list[Comparison]]:
    """The comparisons of each table of a report, all corrected together.

    CheckFailed where two cells have the same number: what tells them apart has not reached the training.
    """
    try:
        return compare_together(tables, pairs, level, min_seeds, unlearned)
    except ValueError as error:
        raise CheckFailed("every cell has a number of its own", str(error), "other numbers") from None


def differences_in_words(found: Sequence[Comparison], words: Words = BETTER) -> str:
    """The comparisons that the seeds show, as `a is better than none`; empty where they show none."""
    shown = [one for one in found if one.better or one.worse]
    said = [f"{one.arm} is {words[one.worse]} than {one.reference}" for one in shown]
    return " and ".join(said[:2]) + (f", and {len(said) - 2} more differences" if said[2:] else "")


def why_not_shown(found: Sequence[Comparison], min_seeds: int, words: Words = BETTER) -> str:
    """Why there is no such difference, as a sentence."""
    seeds = min(one.seeds for one in found)
    if seeds < min_seeds:
        of = f"{seeds} seeds are" if seeds > 1 else "one seed is"
        return f"Not shown: {of} too few to call anything {' or '.join(words)}."
    return f"Not shown: no difference over {seeds} seeds."


def number_line(one: Comparison) -> str:
    """One comparison, and how sure it is."""
    if one.unlearned:
        return f"{one.arm} not compared, as {' and '.join(one.unlearned)} is not shown to learn"
    interval = f"interval {span(one.interval, SIGNED)}" if one.interval else "no interval"
    size = f"{SIGNED(one.mean)}, {percent_of(one)}" if one.percent is not None else SIGNED(one.mean)
    return (
        f"{one.arm} - {one.reference}: {size} ({interval}; p {p_value(one.p_adjusted)} after Holm; "
        f"{one.seeds} seed{'s' * (one.seeds > 1)})"
    )


def undecided_in_words(found: Sequence[Comparison], min_seeds: int) -> list[str]:
    """What the seeds do not show, and what they could have."""
    undecided = [one for one in found if not one.better and not one.worse and not one.unlearned]
    if any(one.seeds < min_seeds for one in found):
        return [f"Of fewer than {min_seeds} seeds nothing is called better, whatever the differences."]
    often = f"a chance of {percent(POWER)}"
    could = [
        f"{one.arm} against {one.reference}"
        + (f" ({one.smallest_shown:.3g} or more would be shown with {often})" if one.smallest_shown else "")
        + (f", a difference like this needs {one.seeds_needed:,} seeds" if one.seeds_needed else "")
        for one in undecided
    ]
    return [f"No difference is shown: {'; '.join(could)}."] if could else []


def answer_figure(
    found: Mapping[str, Sequence[Comparison]],
    caption: str,
    x_label: str,
    base: Callable[[str, Comparison], float] | None = None,
) -> Figure:
    """The differences as a forest, by kind; with `base` in per cent of it, by which the interval is divided too."""

    def row(kind: str, one: Comparison) -> Estimated:
        of = base(kind, one) / 100 if base else 1.0
        interval = [end / of for end in one.interval] if one.interval else None
        return Estimated(kind, f"{one.arm} - {one.reference}", one.mean / of, interval)

    rows = [row(kind, one) for kind, of_kind in found.items() for one in of_kind]
    return forest("answer", caption, rows, x_label, "{:+.2f}%".format if base else SIGNED)


def arms_figure(name: str, arms: Mapping[str, ArmMean], trivial: Mapping[str, float], label: str) -> Figure:
    """Each seed of each arm, their mean with its interval, and what methods without learning get."""
    rows = [Dots(arm, list(of.values.values()), of.mean, of.interval) for arm, of in arms.items()]
    rows += [Dots(method, [value]) for method, value in trivial.items()]
    numbers = "; ".join([f"{arm} {of.mean:.4g}" for arm, of in arms.items()])
    caption = f"{label[0].upper()}{label[1:]} by seed, and the mean over seeds with its interval"
    caption += "; last, what needs no learning." if trivial else "."
    return dots(name, caption, numbers, rows, label)
