"""The study's answer: in a line, in a sentence of numbers, in a figure; and what was not shown.

No sentence says more than its numbers.

A difference counts for the constraint only as far as it is there against every placebo with living layers, in every
other way to count it, and over more than one training; verdict and `not_shown` name whatever of these is lacking.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tasks.attacks.results import Findings, PrimaryAnswer
from tasks.findings.document import Figure
from tasks.findings.figures import Estimated, forest
from tasks.findings.numbers import NATS, holds_zero, p_value, percent, smallest, span, texts_of, value_and_span
from tasks.findings.statistics.equivalence import Answer
from tasks.findings.statistics.power import POWER
from tasks.findings.statistics.resampling import Estimate
from tasks.monotonic.arm import BASELINE, CONTROL, MONOTONIC

CLAIM = "That the constraint makes the model harder to attack"
ONE_SEED = "one seed"
QUESTION, WAYS, CONTROLS = "the question", "the same in other ways", "positive control"
"""Kinds of comparisons on which the answer hangs, beside those with placebos."""
COULD_SHOW = f"the smallest true difference that is shown with a chance of {POWER:.0%}"


@dataclass(frozen=True)
class Answered:
    """Basis of the answer: of one study, or over the cells of a sweep.

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


@dataclass(frozen=True)
class Told:
    """The answer in a line, the numbers behind it in a sentence, and what these do not say, and why."""

    verdict: str
    lead: str
    not_shown: str


def told(answered: Answered) -> Told:
    """The answer to the study's question, each case once."""
    primary, asked = answered.primary, answered.primary.primary
    answer, difference = primary.answer, primary.difference
    if answer is None or difference is None:
        why, unanswered = f"{primary.unanswered}.", f"{CLAIM}, or that it does not: the question is not answered."
        return Told(f"Not answered: {_begins(why)}.", f"The question is not answered: {why}", unanswered)
    margin, less = f"the margin of {answer.margin:g}", "less" if difference.value < 0 else "more"
    no = "Not shown, on one seed" if answered.trainings == ONE_SEED else "No"
    lacking, undecided = _lacking(answered, answer, difference), _undecided(answer, primary.sources)
    untried = "other models, other text and stronger attacks were not tried"
    same = f"as much within {margin} ({_two_one_sided_tests(answer)})"
    small = answer.answer == "differs within the margin"
    claimed = next(iter(lacking), "Yes: harder to attack than the baseline and than every placebo")
    cases = [
        (
            answer.answer == "undecided",
            f"Not shown either way: {_begins(undecided)}",
            "undecided",
            f"{CLAIM}, or that it does not{_because([undecided, answered.one_training])}.",
        ),
        (
            answer.answer == "equivalent",
            f"{no}: as hard to attack, within the margin",
            same,
            f"{CLAIM}, nor that it never does{_because([_disagreement(answer), answered.one_training, untried])}.",
        ),
        (
            less == "more",
            f"{no}: easier to attack{', within the margin' if small else ' than the baseline'}",
            _beside_margin(answer),
            _not_shown(answered, list(lacking.values()), less),
        ),
        (True, claimed, _beside_margin(answer), _not_shown(answered, list(lacking.values()), less)),
    ]
    _, verdict, finding, not_shown = next(case for case in cases if case[0])
    interval = f"{percent(answer.confidence_level)} interval {span(difference.interval, NATS)}"
    rises = f"monotonic's loss rises {abs(difference.value):.4f} nats per token {less} than the baseline's"
    return Told(f"{verdict}.", f"Under {asked.attack}, {rises} ({interval}): {finding}.", not_shown)


def _begins(reason: str) -> str:
    """A reason up to where it goes into detail: a verdict has twelve words."""
    return re.split(r" \(|[:;,.]( |$)", reason)[0]


def _lacking(answered: Answered, answer: Answer, difference: Estimate) -> dict[str, str]:
    """Gaps in a claim for the constraint, the gravest first: the verdict each leads to -> the reason, a clause."""
    primary, alone = answered.primary, "on one seed" if answered.trainings == ONE_SEED else "from one base model"
    alike, without = not_there(primary, primary.from_placebos), not_there(primary, answered.ways)
    rows = {arm: primary.from_placebos[arm] for arm in alike}
    placebos = [f"{arm} ({NATS(row.value)}, interval {span(row.interval, NATS)})" for arm, row in rows.items()]
    partly, ways = " and ".join(answered.not_compared), f"{len(without)} of {len(answered.ways)} other ways to count"
    cases = [
        (
            not primary.from_placebos,
            "Not shown: no placebo with living layers was compared",
            "no placebo with living layers was compared",
        ),
        (
            alike,
            f"No: not told apart from {f'{len(alike)} placebos' if alike[1:] else 'a placebo'}",
            f"monotonic is not told apart from the placebo{'s' * (len(alike) > 1)} {' and '.join(placebos)}",
        ),
        (
            partly,
            f"Not shown: {partly} was not compared in every cell",
            f"{partly}, living in some cells only, was not compared",
        ),
        (
            answer.answer == "differs within the margin",
            "Hardly: harder to attack, by less than the margin",
            "the difference is within the margin",
        ),
        (
            without,
            f"Not shown: not there in {ways}",
            f"the difference is not shown in {ways}{answered.of_ways} ({'; '.join(without)})",
        ),
        (answered.one_training, f"Perhaps: harder to attack, {alone}", answered.one_training),
    ]
    return {verdict: reason for lacks, verdict, reason in cases if lacks}


def _not_shown(answered: Answered, lacking: Sequence[str], less: str) -> str:
    primary = answered.primary
    told_apart = primary.from_placebos and not answered.not_compared and not not_there(primary, primary.from_placebos)
    beyond = f"It is {less} than on every placebo with living layers ({', '.join(primary.from_placebos)})"
    if lacking:
        claim = CLAIM if less == "less" else f"{CLAIM}, nor that it makes it easier"
        return f"{claim}{_because(lacking)}." + (f" {beyond}." if told_apart else "")
    return (
        "That this holds for other models, other text or stronger attacks. "
        f"{beyond}, and the difference is there in every other way to count it{answered.of_ways}."
    )


def _because(reasons: Iterable[str]) -> str:
    *before, last = [*filter(None, reasons)] or [""]
    if not last:
        return ""
    return f", because {', '.join(before)}, and {last}" if before else f", because {last}"


def numbers(answered: Answered) -> list[str]:
    """The difference that answers, with how sure it is, in a line."""
    primary, asked = answered.primary, answered.primary.primary
    if primary.answer is None or primary.difference is None:
        return []
    sure = "; ".join([*_how_sure(primary, primary.answer, primary.difference), answered.trainings])
    return [f"{asked.attack}, monotonic - baseline: {NATS(primary.difference.value)} nats per token ({sure})"]


def comparisons(answered: Answered) -> list[tuple[str, str, Estimate | None]]:
    """Kind and name of the difference that answers, and of all on which it hangs: placebos, other ways, the control."""
    primary, same = answered.primary, "monotonic - baseline"
    rows = [(QUESTION, same, primary.difference)]
    rows += [("placebos whose layers live", f"monotonic - {arm}", row) for arm, row in primary.from_placebos.items()]
    rows += [(WAYS, way, row) for way, row in answered.ways.items()]
    return [*rows, *([(CONTROLS, f"{CONTROL} - baseline", primary.control)] if primary.control else [])]


def in_other_ways(primary: PrimaryAnswer, attacks: Mapping[str, Findings]) -> dict[str, Estimate | None]:
    """The primary difference by fewer attacks, and at equal clean loss: what the answer hangs on."""
    matched = {row.model: row for row in attacks[primary.primary.attack].at_equal_loss}
    return primary.by_fewer_attacks | {"at equal clean loss": matched[MONOTONIC].increase_nats_per_token}


def compared_rows(answered: Answered) -> list[list[str]]:
    """The one comparison that was named beforehand, and all on which it hangs: name, value, interval, p, could show."""
    rows, same = [], f"{MONOTONIC} - {BASELINE}"
    for kind, name, row in comparisons(answered):
        whole = {WAYS: f"{same}, {name}", QUESTION: same, CONTROLS: f"{name}, the positive control"}.get(kind, name)
        tested = (p_value(row.p_value), smallest(row)) if row else ("-", "-")
        rows.append([whole, *value_and_span(row, NATS), *tested])
    return rows


def answered_once(primary: PrimaryAnswer, attacks: Mapping[str, Findings]) -> Answered:
    """Basis of the answer of one study."""
    return Answered(primary, in_other_ways(primary, attacks), ONE_SEED, "one seed says nothing about another training")


def answer_figure(answered: Answered) -> Figure | None:
    """The difference that answers beside its margin, and on what it hangs; None where nothing of it is known."""
    rows = [Estimated(kind, name, row.value, row.interval) for kind, name, row in comparisons(answered) if row]
    if not rows:
        return None
    asked = answered.primary.primary
    margin = asked.margin_nats_per_token
    caption = (
        f"What {asked.attack} adds to the loss of the first model, less what it adds to that of the second: "
        "left of the line the first is harder to attack. Grey: differences too small to matter here, by the margin "
        f"of {margin:g} that was set before. Each interval is for one comparison."
    )
    return forest("answer", caption, rows, "difference (nats per token)", NATS, band=(-margin, margin))


def _how_sure(primary: PrimaryAnswer, answer: Answer, difference: Estimate) -> list[str]:
    """How sure the difference is, on how much it was judged, and the smallest that would have been seen, if any."""
    tested = "not tested by exchanges" if (p := difference.p_value) is None else f"p {p_value(p)}"
    interval = f"{percent(answer.confidence_level)} interval {span(difference.interval, NATS)}"
    judged = [interval, tested, texts_of(primary.documents, primary.sources)]
    if answer.smallest_shown is None or answer.too_few_sources:
        return judged
    return [*judged, f"{answer.smallest_shown:.4f} or more would be shown with a chance of {percent(POWER)}"]


def _two_one_sided_tests(answer: Answer) -> str:
    """Says what decides an equivalence: an interval narrower than the one of a difference."""
    level, interval = percent(1 - 2 * answer.alpha), " to ".join(map(NATS, answer.equivalence_interval or ()))
    return f"two one-sided tests at {percent(answer.alpha)}, {level} interval {interval}"


def _undecided(answer: Answer, sources: int) -> str:
    """Why nothing is decided."""
    if answer.too_few_sources:
        least = f"exchanges of so few give no p below {p_value(answer.least_p_value)}, and an interval is not relied on"
        return f"{sources} source{'s' * (sources != 1)} cannot show it ({least})"
    if answer.interval is None:
        return "documents of one source have no interval"
    return _disagreement(answer) or "the interval leaves both open"


def _disagreement(answer: Answer) -> str:
    """Says that p and interval disagree: then there is no difference; empty where they agree."""
    if answer.interval is None or answer.p_value is None:
        return ""
    holds, small = holds_zero(answer.interval), answer.p_value <= answer.alpha
    if holds and small:
        return f"the interval holds 0, though p is at most {answer.alpha:g}: a difference needs both"
    return "" if holds or small else f"p is above {answer.alpha:g}, though the interval leaves out 0"


def _beside_margin(answer: Answer) -> str:
    if answer.answer == "differs within the margin":
        return f"less than the margin of {answer.margin:g} ({_two_one_sided_tests(answer)})"
    beyond = answer.interval is not None and min(map(abs, answer.interval)) > answer.margin
    return f"{'' if beyond else 'perhaps less, or '}more than the margin of {answer.margin:g}"


def shows_the_control(primary: PrimaryAnswer) -> bool:
    """True where the arm that is expected to be harder to attack is shown to be."""
    row = primary.control
    if row is None or row.interval is None or row.interval[1] >= 0:
        return False
    return primary.answer is None or (row.p_value or 0.0) <= primary.answer.alpha


def not_there(primary: PrimaryAnswer, rows: Mapping[str, Estimate | None]) -> list[str]:
    """The names of those rows, the same difference measured otherwise or against others, where it is not there.

    It is there where the whole interval lies on its side, and p, where there is one, does not say otherwise.
    """
    assert primary.difference is not None and primary.answer is not None, "answered"
    value, alpha = primary.difference.value, primary.answer.alpha

    def there(row: Estimate) -> bool:
        one_side = row.interval is not None and min(end if value > 0 else -end for end in row.interval) > 0
        return one_side and (row.p_value is None or row.p_value <= alpha)

    return [name for name, row in rows.items() if row is None or not there(row)]
