"""The answer is never stronger than the numbers: whatever a claim lacks is said in the verdict, or as not shown."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tasks.attacks.answer import Answered, comparisons, numbers, told
from tasks.attacks.configuration import Primary
from tasks.attacks.results import PrimaryAnswer
from tasks.findings.statistics.equivalence import Answer
from tasks.findings.statistics.permutation import least_p_value
from tasks.findings.statistics.resampling import Estimate

ONE_SEED = "one seed says nothing about another training"
LESS, NOTHING, MORE = [-0.05, -0.01], [-0.01, 0.01], [0.01, 0.05]
FEW = "(exchanges of so few give no p below {}, and an interval is not relied on)"
OPEN = "p is above 0.05, though the interval leaves out 0"
NEVER = re.compile(r"\b(protects?|more robust|proves?|wins?|better|worse|significant\w*)\b", re.IGNORECASE)


def estimate(interval: list[float] | None, p_value: float | None = None) -> Estimate:
    return Estimate(value=-0.03 if interval is None else sum(interval) / 2, interval=interval, p_value=p_value)


def given(said: str = "differs", interval: list[float] | None = LESS, **changed: Any) -> Answered:
    """An answer in which a claim lacks nothing but what is `changed`: fields of `Answered`, its primary, its answer."""
    p_value, sources = changed.pop("p_value", 0.002), changed.pop("sources", 15)
    difference, unanswered = estimate(interval, p_value), changed.pop("unanswered", None)
    answer = {
        "answer": said, "difference": difference.value, "margin": 0.02, "interval": interval,
        "equivalence_interval": [-0.011, 0.0085], "p_value": p_value, "least_p_value": least_p_value(sources),
        "confidence_level": 0.95,
    }  # fmt: skip
    answer |= {name: changed.pop(name) for name in list(changed) if name in Answer.model_fields}
    rows = {arm: estimate(*row) for arm, row in changed.pop("placebos", {"random-signs": (LESS,)}).items()}
    primary = PrimaryAnswer(
        primary=Primary(**changed.pop("asked", {})), documents=40, sources=sources, unanswered=unanswered,
        difference=None if unanswered else difference, answer=None if unanswered else Answer(**answer),
        from_placebos=rows,
    )  # fmt: skip
    ways = {way: row and estimate(*row) for way, row in changed.pop("ways", {"equal": (LESS,)}).items()}
    return Answered(primary, ways, changed.pop("trainings", "3 trainings"), changed.pop("one_training", ""), **changed)


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    "nothing lacks": ({}, "Yes: harder", "That this holds for other models, other text or stronger attacks."),
    "one seed": (
        {"one_training": ONE_SEED, "trainings": "one seed"}, "Perhaps: harder to attack, on one seed.",
        f"because {ONE_SEED}. It is less "
    ),
    "a placebo": ({"placebos": {"a": (NOTHING,)}}, "No: not told apart from a placebo", "a (+0.0000, interval -0.0100"),
    "a placebo by its p": ({"placebos": {"a": (LESS, 0.09)}}, "No: not told apart from a placebo", "the placebo a ("),
    "a placebo without interval": ({"placebos": {"a": (None,)}}, "No: not told apart from a pl", "the placebo a (-0."),
    "two placebos": (
        {"placebos": {"a": (MORE,), "b": (NOTHING,)}}, "No: not told apart from 2 placebos", "placebos a (.* and b ("
    ),
    "no placebo": ({"placebos": {}}, "Not shown: no placebo with living layers", "no placebo with living layers was"),
    "a placebo in some cells": (
        {"not_compared": ["own-signs"]}, "Not shown: own-signs was not compared", "own-signs, living in some cells only"
    ),
    "a way": ({"ways": {"a": (LESS,), "b": (NOTHING,), "c": None}}, "Not shown: .* 2 of 3 other ways", "count (b; c)"),
    "a way by its p": ({"ways": {"a": (LESS, 0.09)}}, "Not shown: .* 1 of 1 other ways", "1 of 1 other ways to count"),
    "another sign": ({"ways": {"a": (MORE,)}}, "Not shown: .* 1 of 1 other ways", "1 of 1 other ways to count (a)"),
    "small": ({"said": "differs within the margin"}, "Hardly: harder", "because the difference is within the margin."),
    "easier": ({"interval": MORE, "ways": {"a": None}}, "No: easier", "nor that it makes it easier, because "),
    "equal": ({"said": "equivalent", "interval": NOTHING}, "No: as hard to attack", "nor that it never does, because "),
    "easier, one seed": ({"interval": MORE, "trainings": "one seed"}, "Not shown, on one seed: easier", "it easier"),
    "equal, one seed": (
        {"said": "equivalent", "interval": NOTHING, "trainings": "one seed"}, "Not shown, on one seed: as hard", "never"
    ),
    "open": (
        {"said": "undecided", "interval": NOTHING, "p_value": 0.4}, "Not shown either way: the interval l", "does not, "
    ),
    "p alone": (
        {"said": "undecided", "interval": NOTHING, "p_value": 0.045}, "Not shown either way: the interval holds 0",
        "though p is at most 0.05"
    ),
    "p and interval": (
        {"said": "undecided", "p_value": 0.125}, "Not shown either way: p is above 0.05.", f"because {OPEN}."
    ),
    "four sources": ({"said": "undecided", "sources": 4}, "Not shown either way: 4 sources ", FEW.format("0.125")),
    "one source": ({"said": "undecided", "sources": 1}, "Not shown either way: 1 source ", FEW.format("1.000")),
    "no interval": ({"said": "undecided", "interval": None}, "Not shown either way: d", "one source have no interval"),
    "dead": ({"unanswered": "the layers are dead"}, "Not answered: the layers are ", "the question is not answered"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_whatever_a_claim_lacks_is_said_in_the_verdict_and_as_not_shown(case):
    changed, short, lacking = CASES[case]
    found = told(given(**changed))
    assert re.match(short, found.verdict) and found.verdict.endswith(".") and len(found.verdict.split()) <= 12
    assert re.search(re.escape(lacking).replace(r"\.\*", ".*"), found.not_shown), found.not_shown
    assert case == "nothing lacks" or "That the constraint makes the model harder to attack" in found.not_shown
    for said in (found.verdict, found.lead, found.not_shown, *numbers(given(**changed))):
        assert "\n" not in said and not NEVER.search(said)
    assert found.lead.startswith(("Under hotflip, monotonic's loss rises", "The question is"))
    assert len(found.lead.split()) <= 35


def test_all_that_lacks_is_named_together():
    found = given(
        "differs within the margin",
        placebos={"a": (NOTHING,)},
        ways={"b": (NOTHING,)},
        not_compared=["own-signs"],
        one_training=ONE_SEED,
    )
    not_shown = told(found).not_shown
    for lacking in ("within the margin, ", "the placebo a (", "own-signs, living", "1 of 1 other ways", ONE_SEED):
        assert lacking in not_shown
    assert "It is less than on every placebo" not in not_shown


@pytest.mark.parametrize(
    ("said", "interval", "beside"),
    [
        ("differs", LESS, "0.0300 nats per token less than the baseline's .*: perhaps less, or more than the margin"),
        ("differs", [-0.05, -0.03], "less than the baseline's .*: more than the margin of 0.02"),
        ("differs", MORE, "more than the baseline's"),
        ("differs within the margin", [-0.01, -0.004], ": less than the margin .*two one-sided tests at 5%, 90% int"),
        ("equivalent", NOTHING, ": as much within the margin of 0.02 .two one-sided tests at 5%"),
        ("equivalent", LESS, ": as much within the margin"),
        ("undecided", [-0.1, 0.1], ": undecided"),
    ],
)
def test_a_difference_stands_beside_the_margin(said, interval, beside):
    assert re.search(beside, told(given(said, interval)).lead)


def test_an_equivalence_whose_p_and_interval_disagree_says_so():
    assert OPEN in told(given("equivalent", LESS, p_value=0.2)).not_shown


def test_the_numbers_have_their_interval_p_texts_sources_and_trainings():
    assert numbers(given(smallest_shown=0.0214)) == [
        "hotflip, monotonic - baseline: -0.0300 nats per token (95% interval -0.0500 to -0.0100; p 0.002; 40 texts of "
        "15 sources; 0.0214 or more would be shown with a chance of 80%; 3 trainings)"
    ]
    assert "would be shown" not in numbers(given("undecided", sources=4, smallest_shown=0.0214))[0], "nothing could be"
    assert "97.5% interval" in numbers(given(confidence_level=0.975))[0]
    assert numbers(given(unanswered="the layers are dead")) == []


def test_the_figure_has_a_row_for_the_difference_each_placebo_each_way_and_the_control():
    found = given(ways={"a": (LESS,), "b": None})
    found = replace(found, primary=found.primary.model_copy(update={"control": estimate(LESS)}))
    assert [(name, row is None) for _, name, row in comparisons(found)] == [
        ("monotonic - baseline", False), ("monotonic - random-signs", False), ("a", False), ("b", True),
        ("random-replacements - baseline", False),
    ]  # fmt: skip
