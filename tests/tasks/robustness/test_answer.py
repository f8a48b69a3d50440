"""The two sentences: what was seen, and what was not shown, never stronger than the numbers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tasks.robustness.answer import Answered, headline, two_sentences
from tasks.robustness.final_results import PrimaryAnswer
from tasks.statistics.configuration import Primary
from tasks.statistics.equivalence import Answer
from tasks.statistics.permutation import least_p_value
from tasks.statistics.resampling import Estimate

ONE_SEED = "one seed says nothing about another training"
FEW = "cannot show it (exchanges of so few give no p below"
LESS, NOTHING, MORE = [-0.05, -0.01], [-0.01, 0.01], [0.01, 0.05]
NEVER = re.compile(r"\b(protects?|more robust|proves?|wins?|better|worse|significant\w*)\b", re.IGNORECASE)


def estimate(interval: list[float] | None, p_value: float | None = None) -> Estimate:
    return Estimate(value=-0.03 if interval is None else sum(interval) / 2, interval=interval, p_value=p_value)


def given(
    said: str = "differs",
    interval: list[float] | None = LESS,
    placebos: dict[str, list[float] | None] | None = None,
    ways: dict[str, list[float] | None] | None = None,
    one_training: str = ONE_SEED,
    unanswered: str | None = None,
    p_value: float | None = 0.002,
    sources: int = 15,
) -> Answered:
    difference = estimate(interval, p_value)
    answer = Answer(
        answer=said, difference=difference.value, margin=0.02, interval=interval, equivalence_interval=[-0.011, 0.0085],
        p_value=p_value, least_p_value=least_p_value(sources), confidence_level=0.95,
    )  # fmt: skip
    compared = {"random-signs": LESS} if placebos is None else placebos
    primary = PrimaryAnswer(
        primary=Primary(),
        documents=40,
        sources=sources,
        difference=None if unanswered else difference,
        answer=None if unanswered else answer,
        unanswered=unanswered,
        from_placebos={arm: estimate(row) for arm, row in compared.items()},
    )
    found: dict[str, Any] = {"at equal clean loss": LESS} if ways is None else ways
    shown = {way: row and estimate(row) for way, row in found.items()}
    return Answered(primary, shown, "one seed" if one_training else "3 trainings of each", one_training)


def test_a_difference_is_said_with_its_size_its_interval_its_trainings_and_its_margin():
    seen, _ = two_sentences(given())
    assert seen == (
        "**Under hotflip the loss of the model whose feed-forward weights are kept non-negative (monotonic) rose by "
        "0.0300 nats per token less than that of the baseline (95% interval -0.0500 to -0.0100, p 0.002, 40 texts of "
        "15 sources, one seed), which may be less or more than the margin of 0.02.**"
    )


@pytest.mark.parametrize(
    ("said", "interval", "shown"),
    [
        ("differs", [-0.05, -0.03], "15 sources, one seed), which is more than the margin of 0.02.**"),
        ("differs", MORE, "0.0300 nats per token more than that of the baseline"),
        ("differs within the margin", [-0.01, -0.004], "which is less than the margin of 0.02 (by two "
         "one-sided tests at 5%, the 90% interval -0.0110 to +0.0085 lies within it).**"),
        ("equivalent", NOTHING, "as much as that of the baseline, within the margin of 0.02 nats per token: by two "
         "one-sided tests at 5%, the 90% interval -0.0110 to +0.0085 lies within it (difference +0.0000, 95% interval "
         "-0.0100 to +0.0100, p 0.002, 40 texts of 15 sources, one seed).**"),
        ("undecided", [-0.1, 0.1], "is undecided (difference +0.0000, 95% interval -0.1000 to +0.1000, p 0.002, 40 "
         "texts of 15 sources, one seed)"),
    ],
)  # fmt: skip
def test_what_was_seen(said: str, interval: list[float], shown: str):
    assert shown in two_sentences(given(said, interval))[0]


@pytest.mark.parametrize(
    ("changed", "lacking"),
    [
        ({"placebos": {"random-signs": NOTHING}}, "monotonic is not told apart from the placebo random-signs (+0.0000, "
         "interval -0.0100 to +0.0100)"),
        ({"placebos": {"random-signs": None}}, "monotonic is not told apart from the placebo random-signs"),
        ({"placebos": {"random-signs": MORE, "own-signs": NOTHING}}, "from the placebos random-signs (+0.0300, "),
        ({"placebos": {}}, "no placebo with living layers was compared by this measure"),
        ({"ways": {"a": LESS, "b": NOTHING, "c": None}}, "not shown in 2 of 3 other ways to count (b; c)"),
        ({"ways": {"a": MORE}}, "not shown in 1 of 1 other ways to count (a)"),
        ({"ways": {}}, "it was counted in no other way"),
        ({}, ONE_SEED),
    ],
)  # fmt: skip
def test_whatever_a_claim_lacks_is_named(changed: dict[str, Any], lacking: str):
    _, not_shown = two_sentences(given(**changed))
    assert "ot shown: that the constraint makes the model harder to attack, because " in not_shown
    assert lacking in not_shown


def test_a_difference_beyond_every_placebo_is_told_and_still_no_claim_on_one_seed():
    _, said = two_sentences(given())
    assert said == (
        "It is less than on every placebo with living layers (random-signs); not shown: that the constraint makes the "
        f"model harder to attack, because {ONE_SEED}."
    )


def test_what_is_there_in_every_way_is_not_shown_for_anything_else():
    _, said = two_sentences(given(one_training=""))
    assert said == (
        "It is less than on every placebo with living layers (random-signs), and the difference is there in every "
        "other way to count it; not shown: that it holds for other models, other text or stronger attacks."
    )


def test_a_model_that_is_easier_to_attack_is_shown_to_be_neither():
    _, said = two_sentences(given(interval=MORE, placebos={"random-signs": LESS}, ways={}))
    assert said.startswith(
        "Not shown: that the constraint makes the model harder to attack, nor that it makes it easier, because "
        "monotonic is not told apart from the placebo random-signs"
    )


@pytest.mark.parametrize(
    ("interval", "sources", "why"),
    [
        (LESS, 4, f"4 sources {FEW} 0.125, and an interval is not relied on)"),
        (NOTHING, 1, f"1 source {FEW} 1.000, and an interval is not relied on)"),
        (LESS, 15, "p is above 0.05, though the interval leaves out 0"),
        (NOTHING, 15, "the interval leaves both open"),
    ],
)
def test_what_is_undecided_says_why(interval: list[float], sources: int, why: str):
    found = given("undecided", interval, sources=sources, p_value=0.125)
    assert f"or that it does not, because {why}, and {ONE_SEED}." in two_sentences(found)[1]
    assert f"p 0.125; 40 texts of {sources} source" in headline(found) and f": undecided; {why}; " in headline(found)


def test_a_difference_within_the_margin_lacks_its_size_and_whatever_another_lacks():
    within = given("differs within the margin", placebos={"random-signs": NOTHING}, ways={"a": LESS, "b": NOTHING})
    _, not_shown = two_sentences(within)
    for lacking in ("the difference is within the margin, ", "the placebo random-signs", "1 of 2 other ways", ONE_SEED):
        assert lacking in not_shown
    assert "not told apart from random-signs; not shown in 1 of 2 other ways to count" in headline(within)
    _, alone = two_sentences(given("differs within the margin", one_training=""))
    assert alone.endswith("makes the model harder to attack, because the difference is within the margin.")


@pytest.mark.parametrize("said", ["equivalent", "undecided"])
def test_without_a_difference_nothing_is_claimed(said: str):
    _, not_shown = two_sentences(given(said, NOTHING))
    assert not_shown.startswith("Not shown: that the constraint makes the model harder to attack")
    assert ONE_SEED in not_shown and "placebo" not in not_shown
    undecided = ", or that it does not, because the interval leaves both open"
    other = undecided if said == "undecided" else ", nor that it never does, because "
    assert other in not_shown


def test_what_cannot_be_answered_says_why_and_claims_nothing():
    found = given(unanswered="the layers are dead")
    assert two_sentences(found) == [
        "**The question is not answered: the layers are dead.**",
        "So nothing here shows that non-negative weights make the model harder to attack, or that they do not.",
    ]
    assert headline(found) == "not answered: the layers are dead"


@pytest.mark.parametrize("said", ["differs", "equivalent", "undecided", "differs within the margin"])
@pytest.mark.parametrize("interval", [LESS, NOTHING, MORE])
@pytest.mark.parametrize("one_training", ["", ONE_SEED])
def test_two_sentences_are_two_and_no_word_says_too_much(said: str, interval: list[float], one_training: str):
    found = given(said, interval, one_training=one_training)
    sentences = two_sentences(found)
    assert len(sentences) == 2
    for sentence in sentences:
        assert len(re.findall(r"[.](?= |\**$)", sentence)) == 1 and not NEVER.search(sentence)
    assert "\n" not in headline(found) and not NEVER.search(headline(found))


def test_the_headline_has_the_number_and_what_it_lacks():
    lacking = given(placebos={"random-signs": NOTHING}, ways={"a": LESS, "b": NOTHING})
    assert headline(lacking) == (
        "hotflip, monotonic - baseline -0.0300 nats per token (95% interval -0.0500 to -0.0100; p 0.002; 40 texts of "
        "15 sources): differs; not told apart from random-signs; not shown in 1 of 2 other ways to count; one seed"
    )
    assert headline(given("equivalent", NOTHING)).endswith(
        ": equivalent; by two one-sided tests at 5%, the 90% interval -0.0110 to +0.0085 lies within it; one seed"
    )


def test_what_could_have_been_seen_stands_in_sentence_and_headline_unless_nothing_could():
    for sources, shown in ((15, True), (4, False)):
        found = given("undecided", NOTHING, sources=sources)
        answer = found.primary.answer.model_copy(update={"smallest_shown": 0.0214})
        could = replace(found, primary=found.primary.model_copy(update={"answer": answer}))
        for text in (two_sentences(could)[0], headline(could)):
            assert ("0.0214 or more would be shown with a chance of 80%" in text) == shown


def test_an_equivalence_beside_an_interval_without_zero_says_what_p_says():
    seen, _ = two_sentences(given("equivalent", LESS, p_value=0.0504))
    assert "p 0.0504, " in seen and seen.endswith("); p is above 0.05, though the interval leaves out 0.**")
    assert "though" not in two_sentences(given("equivalent", NOTHING, p_value=0.4))[0]


def test_a_placebo_or_a_way_is_told_apart_only_where_p_says_so_too():
    """The reviewer's case: an interval without 0, and beside it in the table p 0.090."""
    found = given(one_training="")
    for changed in (
        {"primary": found.primary.model_copy(update={"from_placebos": {"random-signs": estimate(LESS, 0.09)}})},
        {"ways": {"at equal clean loss": estimate(LESS, 0.09)}},
    ):
        _, not_shown = two_sentences(replace(found, **changed))
        assert "ot shown: that the constraint makes the model harder to attack, because " in not_shown
        assert "random-signs (-0.0300" in not_shown or "not shown in 1 of 1 other ways" in not_shown


def test_what_is_measured_at_equal_clean_loss_has_no_p_and_says_so():
    found = given(p_value=None)
    asked = found.primary.primary.model_copy(update={"measure": "increase_at_equal_loss"})
    matched = replace(found, primary=found.primary.model_copy(update={"primary": asked}))
    assert ", not tested by exchanges, 40 texts" in two_sentences(matched)[0]
    assert headline(matched).startswith("hotflip, monotonic - baseline at equal clean loss -0.0300 nats")


def test_a_placebo_that_lives_in_some_cells_only_is_named():
    _, said = two_sentences(replace(given(one_training=""), not_compared=["own-signs"]))
    assert said.endswith("because own-signs, living in some cells only, was not compared.") and "It is less" not in said
    assert "; not compared with own-signs; " in headline(replace(given(), not_compared=["own-signs"]))


def test_levels_are_said_as_they_were_configured():
    found = given("equivalent", NOTHING)
    answer = found.primary.answer.model_copy(update={"confidence_level": 0.975})
    seen, _ = two_sentences(replace(found, primary=found.primary.model_copy(update={"answer": answer})))
    assert "at 2.5%, the 95% interval" in seen and "97.5% interval -0.0100" in seen
