"""Means weighted by tokens, and paired differences whose intervals are those of the pairs."""

import math
import random

import numpy as np
import pytest
from scipy.stats import bootstrap

from tasks.language.losses import LossDifference, paired_difference, summary


def rows(model: str, losses: list[float], tokens: list[int]) -> list[dict]:
    return [
        {
            "model": model,
            "example_id": f"{i:03d}",
            "source": f"{i:03d}",
            "tokens_scored": count,
            "loss_sum_nats": loss * count,
        }
        for i, (loss, count) in enumerate(zip(losses, tokens, strict=True))
    ]


def two_models(difference: float = 0.1, noise: float = 0.05, documents: int = 60) -> list[dict]:
    """`b` is `a` plus `difference` in every document, and documents differ far more than models do."""
    chance = np.random.default_rng(1)
    tokens = chance.integers(5, 200, documents).tolist()
    a = chance.normal(4.0, 1.0, documents)
    b = a + difference + chance.normal(0.0, noise, documents)
    return rows("a", a.tolist(), tokens) + rows("b", b.tolist(), tokens)


def compared(records: list[dict], model: str = "b", reference: str = "a") -> LossDifference:
    return paired_difference(records, model, reference, resamples=500, confidence_level=0.95)


def width(found: LossDifference) -> float:
    low, high = found.interval_nats_per_token
    return high - low


# --------------------------------------------------------------------------------------------- summary


def test_a_model_s_loss_is_weighted_by_tokens_and_not_by_documents():
    found = summary(rows("a", [1.0, 4.0], [30, 10]) + rows("other", [9.0], [1]), "a")
    assert found.as_json() == {
        "documents": 2,
        "tokens_scored": 40,
        "loss_nats_per_token": 1.75,
        "perplexity": pytest.approx(math.exp(1.75)),
    }


# ---------------------------------------------------------------------------------------------- paired


def test_the_difference_is_model_minus_reference_and_lies_in_its_interval():
    found = compared(two_models())
    low, high = found.interval_nats_per_token
    assert low < found.difference_nats_per_token < high
    assert 0 < low < 0.1 < high
    assert (found.model, found.reference) == ("b", "a")
    assert found.p_value < 0.001


def test_the_other_way_round_it_has_the_other_sign():
    one, other = compared(two_models()), compared(two_models(), "a", "b")
    assert other.difference_nats_per_token == pytest.approx(-one.difference_nats_per_token)
    assert other.interval_nats_per_token == pytest.approx([-x for x in reversed(one.interval_nats_per_token)], abs=0.01)


def test_the_difference_is_of_token_weighted_means():
    records = rows("a", [1.0, 1.0], [1, 9]) + rows("b", [3.0, 2.0], [1, 9])
    assert compared(records).difference_nats_per_token == pytest.approx((2.0 * 1 + 1.0 * 9) / 10)


def test_pairing_makes_the_interval_much_narrower_than_independent_samples_would():
    records = two_models()
    per_token = {
        model: np.array([row["loss_sum_nats"] / row["tokens_scored"] for row in records if row["model"] == model])
        for model in "ab"
    }
    unpaired = bootstrap(
        (per_token["b"], per_token["a"]),
        lambda b, a, axis: b.mean(axis=axis) - a.mean(axis=axis),
        n_resamples=500,
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert width(compared(records)) < 0.2 * (unpaired.high - unpaired.low)


def test_a_difference_of_the_same_nats_in_every_token_has_an_interval_of_no_width():
    """However long the documents are: a resample takes a document's loss together with its tokens."""
    found = compared(two_models(difference=1.0, noise=1e-7))
    assert found.interval_nats_per_token == pytest.approx([1.0, 1.0], abs=1e-6)


def test_a_difference_that_is_not_there_has_an_interval_around_zero():
    found = compared(two_models(difference=0.0))
    low, high = found.interval_nats_per_token
    assert low < 0 < high and found.p_value > 0.05


def test_more_noise_and_fewer_documents_widen_the_interval():
    reference = width(compared(two_models()))
    assert width(compared(two_models(noise=0.2))) > 2 * reference
    assert width(compared(two_models(documents=8))) > 1.3 * reference


def test_the_interval_is_a_function_of_the_records_and_not_of_their_order():
    records = two_models()
    shuffled = random.Random(0).sample(records, len(records))
    assert compared(shuffled) == compared(records)


@pytest.mark.parametrize(
    ("edit", "model"),
    [
        (lambda rows: [*rows[:3], rows[3] | {"tokens_scored": rows[3]["tokens_scored"] + 1}, *rows[4:]], "b"),
        (lambda rows: rows[1:], "b"),
        (lambda rows: rows[:-1], "b"),
        (lambda rows: rows, "c"),
    ],
    ids=["a token more", "a document of b alone", "a document of a alone", "a model without records"],
)
def test_two_models_that_were_not_scored_on_the_same_tokens_of_the_same_documents_are_refused(edit, model):
    words = f"{model} and a were not scored on the same tokens of the same documents"
    with pytest.raises(ValueError, match=words):
        compared(edit(two_models()), model)


def test_one_document_gives_no_interval():
    with pytest.raises(ValueError, match="1 source gives no interval"):
        compared(rows("a", [1.0], [5]) + rows("b", [2.0], [5]))


@pytest.mark.filterwarnings("error")
def test_two_models_that_agree_everywhere_have_an_interval_of_zero_and_not_nan():
    records = two_models()[:60]
    same = records + [row | {"model": "b"} for row in records]
    assert compared(same).interval_nats_per_token == [0.0, 0.0]


def test_documents_of_one_source_are_resampled_together():
    """Ten documents of one file that differ in the same way are one observation and not ten."""
    chance = np.random.default_rng(3)
    per_source = np.repeat(chance.normal(0.1, 0.1, 12), 10)
    a, tokens = chance.normal(4.0, 1.0, 120), [50] * 120
    records = rows("a", a.tolist(), tokens) + rows("b", (a + per_source).tolist(), tokens)
    apart = compared(records)
    for row in records:
        row["source"] = f"file {int(row['example_id']) // 10}"
    together = compared(records)
    assert together.difference_nats_per_token == pytest.approx(apart.difference_nats_per_token)
    assert width(together) > 2 * width(apart)
