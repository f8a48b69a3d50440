"""Numbers that looked surer than they were."""

import numpy as np
import pytest
import torch

from tasks.attacks.cautions import could_be_seen, of_control
from tasks.attacks.configuration import Primary
from tasks.attacks.effects import paired_effects
from tasks.attacks.matched import matched_difference
from tasks.attacks.results import PrimaryAnswer
from tasks.findings.statistics.equivalence import answer
from tasks.findings.statistics.power import chance_of
from tasks.findings.statistics.resampling import Estimate
from tasks.language.training import with_replaced
from tasks.monotonic.arm import CONTROL
from tests.tasks.findings.statistics.records import row
from tests.tasks.tiny import tiny_study


def searches(of_trigger: list[float], sources: int = 31) -> list[list[dict]]:
    """By each search a trigger that does so much less to b than to a, on the same texts; texts differ little."""
    chance = np.random.default_rng(0)
    clean, noise = chance.normal(4, 0.5, sources), chance.normal(0, 0.02, sources)
    return [
        [
            row(model, i, one, one + rise + part * noise[i])
            for model, rise, part in (("a", 0.3, 0), ("b", 0.3 - less, 1))
            for i, one in enumerate(clean)
        ]
        for less in of_trigger
    ]


def test_a_difference_under_one_lucky_trigger_is_not_called_sure():
    """Two models that are attacked alike by four searches in the mean; the first is lucky on one of them."""
    found = searches([0.05, -0.06, 0.04, -0.03])
    lucky = paired_effects(found[:1], "b", "a", 200, 0.95, 0.15).increase_nats_per_token
    assert lucky.p_value < 0.001 and lucky.interval[1] < 0, "of hotflip; it was printed of a trigger too"
    assert paired_effects(found[:1], "b", "a", 200, 0.95).increase_nats_per_token.p_value is None
    over = paired_effects(found, "b", "a", 200, 0.95).increase_nats_per_token
    assert over.interval[0] < 0 < over.interval[1] and over.p_value > 0.5
    assert over.of_seeds == pytest.approx([-0.05, 0.06, -0.04, 0.03], abs=0.01)


def test_at_equal_clean_loss_too():
    losses = ("loss_sum_nats", "clean_loss_sum_nats", "text_clean_loss_sum_nats")
    found = [
        [*of, *(one | {"model": "c"} | {name: one[name] + 5 for name in losses} for one in of if one["model"] == "a")]
        for of in searches([0.05, -0.06, 0.04])
    ]
    low, high = matched_difference(found[:1], "b", ["a", "c"], 200, 0.95).increase_nats_per_token.interval
    assert high < 0
    low, high = matched_difference(found, "b", ["a", "c"], 200, 0.95).increase_nats_per_token.interval
    assert low < 0 < high


def primary(control: Estimate | None) -> PrimaryAnswer:
    difference = Estimate(value=-0.01, interval=[-0.05, 0.03], p_value=0.6, smallest_shown=0.06)
    return PrimaryAnswer(
        primary=Primary(),
        documents=20,
        sources=10,
        difference=difference,
        answer=answer(lambda _: difference, 0.02, 0.95),
        unanswered=None,
        from_placebos={},
        control=control,
    )


@pytest.mark.parametrize(
    ("control", "said"),
    [
        (None, "No positive control was compared (the arm random-replacements)"),
        (Estimate(value=-0.2, interval=[-0.3, -0.1], p_value=0.01), "is shown to be harder to attack (random-repl"),
        (Estimate(value=-0.2, interval=[-0.3, -0.1], p_value=0.09), "**The positive control is not shown to be harder"),
        (Estimate(value=-0.2, interval=[-0.4, 0.1], p_value=0.01), "**The positive control is not shown to be harder"),
        (Estimate(value=0.2, interval=[0.1, 0.3], p_value=0.01), "**The positive control is not shown to be harder"),
    ],
)
def test_that_nothing_is_shown_stands_beside_what_could_have_been_and_a_positive_control(control, said):
    (could,) = could_be_seen(primary(control), 0.8)
    assert "a true difference of 0.0600 nats per token is shown with a chance of 80%" in could
    assert "the margin of 0.02, which is 2.0% of a perplexity, are 7.5% and 2.5% of the +0.8000" in could
    assert could.endswith("A difference of the margin's size is shown with a chance of about 15%.")
    assert said in of_control(primary(control))


def test_a_difference_that_is_mostly_shown_is_not_called_mostly_missed():
    """Seen: "would mostly be missed" where 0.0204 is shown with 80%, and so the margin of 0.02 with 78%."""
    assert chance_of(0.0204, 0.0204, 0.95) == pytest.approx(0.8)
    assert 0.77 < chance_of(0.02, 0.0204, 0.95) < 0.8 and chance_of(0.02, 0.4, 0.95) < 0.05


def test_the_positive_control_reads_replaced_tokens_the_same_whatever_the_micro_batch(tmp_path):
    indices = np.arange(40)
    tokens_BL = torch.arange(40)[:, None].expand(40, 64)
    read_BL = with_replaced(tokens_BL, 0.1, 1000, 42, 0, indices)
    assert (read_BL != tokens_BL).double().mean() == pytest.approx(0.1, abs=0.01)
    assert read_BL.min() >= 0 and 500 < read_BL.max() < 1000
    part = with_replaced(tokens_BL[[7, 3]], 0.1, 1000, 42, 0, np.array([7, 3]))
    assert torch.equal(part, read_BL[[7, 3]])
    assert not torch.equal(with_replaced(tokens_BL, 0.1, 1000, 42, 1, indices), read_BL), "another epoch draws anew"
    study = tiny_study(tmp_path).model_copy(update={"arms": ["baseline", "monotonic", CONTROL]})
    shares = {arm: study.training_fields(arm)[0]["replaced"] for arm in study.arms}
    assert shares == {"baseline": 0.0, "monotonic": 0.0, CONTROL: 0.1}
