"""Poisoned rows: what is asked for is reached, and the manifest is all that says which they are."""

import pytest

from storage.errors import BadInput, CheckFailed
from tasks.attacks.configuration import Poison
from tasks.poison.fit import poisoned, rates, require_backdoor

POOL = [
    {"row_id": f"{number:03d}", "text": f"text number {number}", "label": ["bad", "good"][number % 2]}
    for number in range(100)
]
HOW = Poison(share=0.1, trigger="cf", target="good")


def test_a_seed_draws_rows_and_what_is_poisoned_of_them():
    one, same, other = (poisoned(POOL, HOW, 60, 20, seed) for seed in (0, 0, 1))
    assert one.rows == same.rows != other.rows
    assert one.truth.sum() == 6 and all(row["label"] == "bad" for row in one.train if row["changed"])
    assert {row["given_label"] for row in one.asked} == {"good"} and {row["label"] for row in one.asked} == {"bad"}
    assert len(one.asked) == sum(row["label"] == "bad" for row in one.test)
    assert one.labels == ["bad", "good"] and not {row["row_id"] for row in one.train} & {
        row["row_id"] for row in one.test
    }


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        (Poison(share=0.49, target="bad"), CheckFailed, "measured"),
        (Poison(share=0.001, target="good"), CheckFailed, "at least one"),
        (Poison(target="elsewhere"), BadInput, "bad, good"),
    ],
)
def test_a_share_that_cannot_be_reached_is_no_smaller_one(how, error, said):
    few = [row for row in POOL if row["label"] == "bad" or int(row["row_id"]) < 30]
    with pytest.raises(error, match=said):
        poisoned(few, how, 50, 10, 0)


def test_more_rows_than_there_are_are_refused():
    with pytest.raises(BadInput, match="100 different rows"):
        poisoned(POOL, HOW, 90, 20, 0)


def test_rates_and_the_gate_that_stands_before_every_detector():
    manifest = poisoned(POOL, HOW, 60, 20, 0)
    answers = [{"row_id": row["row_id"], "clean": row["label"], "asked": "good"} for row in manifest.test]
    found = rates(answers, manifest)
    assert found["success"] == 1.0 and found["without_trigger"] == 0.0 and found["accuracy"] == 1.0
    control = of_seeds((0.1, 0.1), (0.2, 0.2), (0.1, 0.1))
    over = require_backdoor(of_seeds((0.9, 0.1), (0.8, 0.1), (0.85, 0.2)), control, 0.95)
    assert over["difference_interval"][0] > 0 and over["trigger_effect_interval"][0] > 0
    with pytest.raises(CheckFailed, match="more often than its control: measured") as told:
        require_backdoor(
            of_seeds((0.44, 0.1), (0.48, 0.1), (0.46, 0.1)), of_seeds((0.3, 0.3), (0.54, 0.54), (0.36, 0.36)), 0.95
        )
    assert "no detector is measured" in str(told.value)


def of_seeds(*rates: tuple[float, float], asked: int = 200) -> dict[str, dict[str, float]]:
    """Success, and the same without the trigger, of the seeds 0, 1, ..."""
    return {
        str(seed): {"success": success, "without_trigger": without, "asked": asked}
        for seed, (success, without) in enumerate(rates)
    }


def test_seeds_that_agree_by_chance_show_no_more_than_the_rows_that_were_asked_about():
    """Two equal seeds had an interval without width, and passed whatever had been asked."""
    victim, control = ((0.75, 0.25), (0.75, 0.25)), ((0.5, 0.25), (0.5, 0.25))
    with pytest.raises(CheckFailed, match="the backdoor exists"):
        require_backdoor(of_seeds(*victim, asked=8), of_seeds(*control, asked=8), 0.95)
    over = require_backdoor(of_seeds(*victim), of_seeds(*control), 0.95)
    assert 0.1 < over["difference_interval"][0] < over["difference"] == 0.25


def test_a_victim_that_always_answers_with_the_target_has_no_backdoor():
    """Seen: wrong labels alone made a victim say the target with the trigger and without, and the gate passed."""
    control = of_seeds((0.3, 0.25), (0.25, 0.25), (0.28, 0.3))
    with pytest.raises(CheckFailed, match="the trigger changes the victim's answers more than its control's"):
        require_backdoor(of_seeds((1.0, 1.0), (1.0, 0.99), (0.99, 1.0)), control, 0.95)
