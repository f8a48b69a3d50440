"""The study's answer: in a line, in a sentence of numbers, in a figure; and what was not shown.

No sentence says more than its numbers.

A difference counts for the constraint only as far as it is there against every placebo with living layers, in every
other way to count it, and over more than one training; whatever of these is lacking, the second sentence names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tasks.findings.figures import Estimated
from tasks.findings.numbers import NATS, holds_zero, p_value, percent, span, texts_of
from tasks.findings.statistics.equivalence import Answer
from tasks.findings.statistics.power import POWER
from tasks.findings.statistics.resampling import Estimate
from tasks.robustness.arm import CONTROL
from tasks.robustness.final_results import PrimaryAnswer

ARM = "the model whose feed-forward weights are kept non-negative (monotonic)"
CLAIM = "That the constraint makes the model harder to attack"
REFERENCES = {
    "increase": "that of the baseline",
    "increase_at_equal_loss": "that of the model without constraint at the same clean loss",
}
ONE_SEED = "one seed"
AT = {"increase": "", "increase_at_equal_loss": " at equal clean loss"}


@dataclass(frozen=True)
class Answered:
    """What the answer is made from: of one study, or over the cells of a sweep.

    `ways` are the same comparison counted otherwise, None where one is not known; `trainings` says how many, and
    `one_training` what that lacks, empty where nothing. Over cells, `not_compared` are placebos whose layers live in
    some of them only, and `of_ways` says of what the intervals of `ways` know.
    """

    primary: PrimaryAnswer
    ways: Mapping[str, Estimate | None]
    trainings: str
    one_training: str
    not_compared: Sequence[str] = ()
    of_ways: str = ""


def verdict(given: Answered) -> str:
    """The answer to the study's question in a line."""
    found = given.primary
    if found.answer is None or found.difference is None:
        return f"Not answered: {found.unanswered}."
    if why := _undecided(found.answer, found.sources):
        return f"Not shown either way: {why}."
    no = "Not shown, on one seed" if given.trainings == ONE_SEED else "No"
    if found.answer.answer == "equivalent":
        return f"{no}: as hard to attack as the baseline, within the margin of {found.answer.margin:g} nats per token."
    if found.difference.value > 0:
        small = ", by less than the margin" if found.answer.answer == "differs within the margin" else ""
        return f"{no}: easier to attack than the baseline{small}."
    if not found.from_placebos:
        return "Not shown: no placebo with living layers was compared."
    if alike := not_told_apart(found):
        return f"No: not told apart from {'a placebo' if not alike[1:] else f'{len(alike)} placebos'}."
    if given.not_compared:
        return f"Not shown: {' and '.join(given.not_compared)} was not compared in every cell."
    if found.answer.answer == "differs within the margin":
        return f"Hardly: harder to attack, by less than the margin of {found.answer.margin:g} nats per token."
    if not given.ways:
        return "Not shown: it was counted in no other way."
    if without := _ways_without(given):
        return f"Not shown: the difference is not there in {without}."
    if given.one_training:
        return f"Perhaps: harder to attack than the baseline and every placebo here, but {given.one_training}."
    return "Yes: harder to attack than the baseline and than every placebo."


def numbers(given: Answered) -> str:
    """The difference that answers, with how sure it is, in a line."""
    found, asked = given.primary, given.primary.primary
    if found.answer is None or found.difference is None:
        return ""
    compared = f"{asked.attack}, monotonic - baseline{AT[asked.measure]}"
    return (
        f"{compared}: {NATS(found.difference.value)} nats per token ({'; '.join(_numbers(found))}; {given.trainings})"
    )


def effects(given: Answered) -> list[Estimated]:
    """The rows of the figure that answers: the difference, against placebos, counted otherwise, of the control."""
    found, same = given.primary, "monotonic - baseline"
    rows = [("the question", same, found.difference)]
    rows += [("placebos whose layers live", f"monotonic - {arm}", row) for arm, row in found.from_placebos.items()]
    rows += [("the same in other ways", way, row) for way, row in given.ways.items()]
    rows += [("positive control", f"{CONTROL} - baseline", found.control)]
    return [Estimated(kind, label, row.value, row.interval) for kind, label, row in rows if row is not None]


def seen(given: Answered) -> str:
    """The numbers behind the verdict in a sentence."""
    found, asked = given.primary, given.primary.primary
    if found.answer is None or found.difference is None:
        return f"The question is not answered: {found.unanswered}."
    value, reference = found.difference.value, REFERENCES[asked.measure]
    margin, numbers = f"{found.answer.margin:g}", ", ".join([*_numbers(found), given.trainings])
    whole = f"(difference {NATS(value)}, {numbers})"
    if found.answer.answer == "undecided":
        return (
            f"Whether under {asked.attack} the loss of {ARM} rises more or less than {reference}, or as much within "
            f"the margin of {margin} nats per token, is undecided {whole}."
        )
    if found.answer.answer == "equivalent":
        though = f"; {why}" if (why := _disagreement(found.answer)) else ""
        return (
            f"Under {asked.attack} the loss of {ARM} rose as much as {reference}, within the margin of {margin} nats "
            f"per token: {two_one_sided_tests(found.answer)} {whole}{though}."
        )
    return (
        f"Under {asked.attack} the loss of {ARM} rose by {abs(value):.4f} nats per token {_less(given)} than "
        f"{reference} ({numbers}), which {_beside_margin(found.answer)}."
    )


def _numbers(found: PrimaryAnswer) -> list[str]:
    """How sure the difference is, and on how much it was judged."""
    assert found.answer is not None and found.difference is not None, "answered"
    tested = "not tested by exchanges" if (p := found.difference.p_value) is None else f"p {p_value(p)}"
    interval = f"{percent(found.answer.confidence_level)} interval {span(found.difference.interval, NATS)}"
    return [interval, tested, texts_of(found.documents, found.sources), *_could_show(found.answer)]


def _could_show(answer: Answer) -> list[str]:
    """The smallest difference that would have been seen, where anything could be."""
    if answer.smallest_shown is None or answer.too_few_sources:
        return []
    return [f"{answer.smallest_shown:.4f} or more would be shown with a chance of {percent(POWER)}"]


def two_one_sided_tests(answer: Answer) -> str:
    """What an equivalence is decided by: an interval narrower than the one of a difference."""
    assert answer.equivalence_interval is not None, "decided by it"
    low, high = map(NATS, answer.equivalence_interval)
    level, alpha = percent(1 - 2 * answer.alpha), percent(answer.alpha)
    return f"by two one-sided tests at {alpha}, the {level} interval {low} to {high} lies within it"


def _undecided(answer: Answer, sources: int) -> str:
    """Why nothing is decided; empty where something is."""
    if answer.answer != "undecided":
        return ""
    if answer.too_few_sources:
        least = f"exchanges of so few give no p below {p_value(answer.least_p_value)}, and an interval is not relied on"
        return f"{sources} source{'s' * (sources != 1)} cannot show it ({least})"
    if answer.interval is None:
        return "documents of one source have no interval"
    return _disagreement(answer) or "the interval leaves both open"


def _disagreement(answer: Answer) -> str:
    """That p and interval disagree: then there is no difference; empty where they agree."""
    if answer.interval is None or holds_zero(answer.interval) or (answer.p_value or 0.0) <= answer.alpha:
        return ""
    return f"p is above {answer.alpha:g}, though the interval leaves out 0"


def _beside_margin(answer: Answer) -> str:
    if answer.answer == "differs within the margin":
        return f"is less than the margin of {answer.margin:g} ({two_one_sided_tests(answer)})"
    beyond = answer.interval is not None and min(map(abs, answer.interval)) > answer.margin
    return f"{'is' if beyond else 'may be less or'} more than the margin of {answer.margin:g}"


def not_shown(given: Answered) -> str:
    """What these numbers do not say, and why, in a sentence."""
    found = given.primary
    if found.answer is None or found.difference is None:
        return f"{CLAIM}, or that it does not: the question is not answered."
    if why := _undecided(found.answer, found.sources):
        return f"{CLAIM}, or that it does not{_because([why, given.one_training])}."
    if found.answer.answer == "equivalent":
        untried = "other models, other text and stronger attacks were not tried"
        return f"{CLAIM}, nor that it never does{_because([given.one_training, untried])}."
    placebos, claim = _of_placebos(found), CLAIM if _less(given) == "less" else f"{CLAIM}, nor that it makes it easier"
    small = "the difference is within the margin" if found.answer.answer == "differs within the margin" else ""
    partly = _partly_living(given.not_compared)
    lacking = list(filter(None, [small, placebos, partly, _of_ways(given), given.one_training]))
    if placebos or partly:
        return f"{claim}{_because(lacking)}."
    beyond = f"It is {_less(given)} than on every placebo with living layers ({', '.join(found.from_placebos)})"
    if lacking:
        return f"{claim}{_because(lacking)}. {beyond}."
    return (
        "That this holds for other models, other text or stronger attacks. "
        f"{beyond}, and the difference is there in every other way to count it{given.of_ways}."
    )


def _less(given: Answered) -> str:
    assert given.primary.difference is not None, "answered"
    return "less" if given.primary.difference.value < 0 else "more"


def _because(reasons: Sequence[str]) -> str:
    *before, last = [*filter(None, reasons)] or [""]
    if not last:
        return ""
    return f", because {', '.join(before)}, and {last}" if before else f", because {last}"


def _of_placebos(found: PrimaryAnswer) -> str:
    """What the comparison with the placebos lacks; empty where each is told apart."""
    if not found.from_placebos:
        return "no placebo with living layers was compared by this measure"
    if not (alike := not_told_apart(found)):
        return ""
    rows = {arm: found.from_placebos[arm] for arm in alike}
    shown = [f"{arm} ({NATS(row.value)}, interval {span(row.interval, NATS)})" for arm, row in rows.items()]
    return f"monotonic is not told apart from the placebo{'s' if shown[1:] else ''} {' and '.join(shown)}"


def _partly_living(not_compared: Sequence[str]) -> str:
    return f"{' and '.join(not_compared)}, living in some cells only, was not compared" if not_compared else ""


def not_told_apart(found: PrimaryAnswer) -> list[str]:
    """The placebos against which the difference is not there with its sign."""
    return without_it(found, found.from_placebos)


def _of_ways(given: Answered) -> str:
    """In which other ways to count the difference is not there; empty where it is in all."""
    if not given.ways:
        return "it was counted in no other way"
    without = _ways_without(given)
    return f"the difference is not shown in {without}{given.of_ways} ({'; '.join(_without(given))})" if without else ""


def _ways_without(given: Answered) -> str:
    return f"{len(found)} of {len(given.ways)} other ways to count" if (found := _without(given)) else ""


def _without(given: Answered) -> list[str]:
    return without_it(given.primary, given.ways)


def shows_the_control(found: PrimaryAnswer) -> bool:
    """Whether the arm that is expected to be harder to attack is shown to be."""
    row = found.control
    if row is None or row.interval is None or row.interval[1] >= 0:
        return False
    return found.answer is None or (row.p_value or 0.0) <= found.answer.alpha


def without_it(found: PrimaryAnswer, rows: Mapping[str, Estimate | None]) -> list[str]:
    """Of the same difference measured otherwise, or against others: where it is not there.

    It is there where the whole interval lies on its side, and p, where there is one, does not say otherwise.
    """
    assert found.difference is not None and found.answer is not None, "answered"
    value, alpha = found.difference.value, found.answer.alpha

    def there(row: Estimate) -> bool:
        one_side = row.interval is not None and min(end if value > 0 else -end for end in row.interval) > 0
        return one_side and (row.p_value is None or row.p_value <= alpha)

    return [name for name, row in rows.items() if row is None or not there(row)]
