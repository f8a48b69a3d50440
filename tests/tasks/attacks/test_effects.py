"""What an attack did: absolute and relative, beside its control and beside other models, with honest intervals."""

import json
import random
from typing import Any

import numpy as np
import pytest

from tasks.attacks.effects import Effect, EffectDifference, attack_effect, control_successes, paired_effects, succeeded
from tasks.findings.statistics.resampling import Estimate
from tests.tasks.findings.statistics.records import row, some

THRESHOLD = 0.15


def effect(rows: list[dict], model: str = "a", threshold: float | None = THRESHOLD) -> Any:
    return attack_effect(rows, model, 300, 0.95, threshold)


def paired(rows: list[dict], model: str = "b", reference: str = "a", threshold: float | None = THRESHOLD) -> Any:
    return paired_effects([rows], model, reference, 300, 0.95, threshold)


def estimates(found: Effect | EffectDifference) -> dict[str, Estimate]:
    return {name: value for name, value in found if isinstance(value, Estimate)}


def test_every_number_is_the_one_that_is_computed_by_hand():
    rows = [
        row(
            "a",
            0,
            2.0,
            3.0,
            tokens_scored=5,
            loss_sum_nats=15.0,  # of another attack than the search on this model, which led to 14
            clean_loss_sum_nats=10.0,
            control_losses_sum_nats=[10.0, 12.0],
            blind_loss_sum_nats=13.0,
            budget_losses_sum_nats=[12.5, 14.0],
        ),
        row("a", 1, 4.0, 4.4, control_losses_sum_nats=[40.0, 44.0], blind_loss_sum_nats=43.0),
    ]
    found = effect(rows)
    # attacked 15 + 44 = 59, clean 10 + 40 = 50, 15 tokens; control 11 + 42 = 53, blind 13 + 43 = 56;
    # search 12.5 + 42 = 54.5 and 14 + 44 = 58; of the whole texts 20 + 40 = 60, 20 tokens
    assert found.clean_loss_nats_per_token == pytest.approx(3.0)
    assert found.increase_nats_per_token.value == pytest.approx(9 / 15)
    assert found.relative_increase.value == pytest.approx(0.6 / 3.0)
    assert found.control_increase_nats_per_token.value == pytest.approx(0.2)
    assert found.attack_minus_control_nats_per_token.value == pytest.approx(9 / 15 - 0.2)
    assert found.blind_increase_nats_per_token.value == pytest.approx(6 / 15)
    assert found.search_increase_nats_per_token.value == pytest.approx(8 / 15)
    assert found.search_minus_blind_nats_per_token.value == pytest.approx(2 / 15)
    assert [budget.value for budget in found.budget_increases] == pytest.approx([4.5 / 15, 8 / 15])
    assert found.success_rate.value == 0.5  # 1.0 and 0.4 nats, of which 0.3 and 0.6 are needed
    assert found.control_success_rate.value == 0.25  # one of two draws on the first text
    assert (found.documents, found.sources) == (2, 2)


def test_differences_between_models_are_those_of_their_effects():
    rows = some("a", 0.5) + some("b", 0.2, seed=1)
    found, a, b = paired(rows), effect(rows, "a"), effect(rows, "b")
    assert set(estimates(found)) < set(estimates(a))
    for name in estimates(found):
        ours, minuend, subtrahend = (getattr(effects, name) for effects in (found, b, a))
        assert ours.value == pytest.approx(minuend.value - subtrahend.value), name
        low, high = ours.interval
        assert low < ours.value < high, name
        assert 0 < ours.p_value <= 1, name
    assert found.increase_nats_per_token.p_value < 0.001
    assert (found.model, found.reference) == ("b", "a")


def test_the_same_nats_are_a_smaller_share_for_the_model_that_predicts_badly():
    rows = [row(model, i, clean, clean + 0.4) for model, clean in (("a", 2.0), ("b", 4.0)) for i in range(10)]
    found = paired(rows)
    assert found.increase_nats_per_token.value == pytest.approx(0.0)
    a, b = (effect(rows, model).relative_increase.value for model in ("a", "b"))
    assert (a, b) == pytest.approx((0.2, 0.1))
    assert found.success_rate.value == -1.0


def test_an_attack_that_writes_over_expensive_tokens_does_not_choose_its_denominator():
    """What is still scored is cheaper than the text: +0.5 is 25 % of that, and 10 % of the text."""
    one = row("a", 0, 5.0, 5.5, tokens_scored=5, loss_sum_nats=12.5, clean_loss_sum_nats=10.0)
    assert not succeeded(one, 0.15) and succeeded(one, 0.09)
    assert effect([one]).relative_increase.value == pytest.approx(0.1)


def test_an_attack_without_successes_has_none_of_the_rates():
    assert not [name for name in effect(some(), threshold=None).as_json() if "success" in name]
    assert not [name for name in paired(some() + some("b"), threshold=None).as_json() if "success" in name]


def test_whole_sources_are_resampled():
    """Ten texts of one file that behave in the same way are one observation and not ten."""
    rises = np.repeat(np.random.default_rng(3).normal(0.5, 0.3, 8), 10)
    rows = [row("a", i, 4.0, 4.0 + rise) for i, rise in enumerate(rises)]
    together = [given | {"source": f"file {i // 10}"} for i, given in enumerate(rows)]

    def width(records: list[dict]) -> float:
        low, high = effect(records).increase_nats_per_token.interval
        return high - low

    assert width(together) > 2 * width(rows)
    assert effect(together).sources == 8


def test_pairs_are_resampled_together():
    """Two models that react alike to every text differ with certainty, however much texts differ."""
    rises = np.random.default_rng(3).normal(0.5, 0.4, 30)
    rows = [row("a", i, 4.0, 4.0 + rise) for i, rise in enumerate(rises)]
    rows += [row("b", i, 4.0, 4.1 + rise + 1e-4 * i) for i, rise in enumerate(rises)]
    low, high = paired(rows).increase_nats_per_token.interval
    assert 0.1 < low < high < 0.104


def test_the_interval_depends_on_the_level_and_not_on_the_order_of_the_records():
    rows = some()
    assert effect(random.Random(0).sample(rows, len(rows))) == effect(rows)
    low, high = effect(rows).increase_nats_per_token.interval
    inner = attack_effect(rows, "a", 300, 0.5).increase_nats_per_token.interval
    assert low < inner[0] < inner[1] < high


UNLIKE = {
    "a text less": (lambda rows: rows[1:], "000"),
    "a text more": (lambda rows: rows[:-1], "029"),
    "another source": (lambda rows: [*rows[:-1], rows[-1] | {"source": "elsewhere"}], "029"),
    "a text twice": (lambda rows: [*rows, rows[-1]], "029"),
    "tokens_scored": (
        lambda rows: [*rows[:7], rows[7] | {"tokens_scored": rows[7]["tokens_scored"] - 1}, *rows[8:]],
        "007",
    ),
    "text_tokens": (lambda rows: [*rows[:7], rows[7] | {"text_tokens": rows[7]["text_tokens"] - 1}, *rows[8:]], "007"),
}


@pytest.mark.parametrize(("edit", "document"), UNLIKE.values(), ids=UNLIKE)
def test_two_models_that_were_not_attacked_on_the_same_tokens_are_refused(edit, document):
    with pytest.raises(ValueError, match=f"b and a were not attacked on the same tokens of document {document}"):
        paired(edit(some("a") + some("b")))


def test_a_model_without_records_is_refused():
    with pytest.raises(ValueError, match="c was attacked on no document"):
        effect(some(), "c")


# ---------------------------------------------------------------------------------------------- degenerate


def degenerate() -> dict[str, list[dict]]:
    equal = [row(model, i, 4.0, 4.5) for model in "ab" for i in range(12)]
    one_source = [given | {"source": "one"} for given in some("a") + some("b", seed=1)]
    unhurt = [row(model, i, 4.0, 4.0) for model in "ab" for i in range(12)]
    single = [row("a", 0, 4.0, 4.5), row("b", 0, 4.0, 4.1)]
    two = [row(model, i, 4.0, 4.5 + i) for model in "ab" for i in range(2)]
    return {"equal": equal, "one source": one_source, "unhurt": unhurt, "single": single, "two": two}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", degenerate())
def test_degenerate_records_give_finite_numbers_or_none(case):
    rows = degenerate()[case]
    for found in (effect(rows), paired(rows)):
        json.dumps(found.as_json(), allow_nan=False)
        for name, estimate in estimates(found).items():
            assert estimate.interval is None or (estimate.interval[0] <= estimate.value <= estimate.interval[1]), name


@pytest.mark.parametrize("case", ["one source", "single"])
def test_one_source_gives_no_interval(case):
    rows = degenerate()[case]
    assert effect(rows).sources == 1
    for found in (effect(rows), paired(rows)):
        assert all(estimate.interval is None for estimate in estimates(found).values())
        assert all(estimate.p_value is None for estimate in estimates(found).values())


def test_texts_that_all_react_alike_have_an_interval_without_width():
    rows = degenerate()["equal"]
    assert effect(rows).increase_nats_per_token == Estimate(value=0.5, interval=[0.5, 0.5])
    assert paired(rows).increase_nats_per_token == Estimate(value=0.0, interval=[0.0, 0.0], p_value=1.0)


def test_a_success_is_more_than_the_share_and_not_as_much():
    assert not succeeded(row("a", 0, 4.0, 5.0), 0.25)
    assert succeeded(row("a", 0, 4.0, 5.001), 0.25)
    assert not succeeded(row("a", 0, 0.0, 0.0), 0.25)


def test_successes_are_those_of_the_losses_and_not_of_a_count():
    one = row("a", 0, 4.0, 4.1, success=True, control_losses_sum_nats=[40.0, 50.0, 46.1])
    assert control_successes(one, THRESHOLD) == 2
    found = effect([one])
    assert (found.success_rate.value, found.control_success_rate.value) == (0.0, pytest.approx(2 / 3))
