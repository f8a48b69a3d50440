"""The effect at equal clean loss."""

import random

import numpy as np
import pytest

from tasks.attacks.matched import MatchedDifference, matched_difference, on_curve
from tests.tasks.findings.statistics.records import row

PATH = {"base@0.5": (5.0, 0.2), "base": (4.0, 0.6), "baseline": (3.8, 0.8)}
"""Model -> its clean loss, and what the attack adds."""


def records(models: dict[str, tuple[float, float]], sources: int = 20, noise: float = 0.0, seed: int = 0) -> list[dict]:
    """Sources differ in their clean loss, the same for all models, and are hit the less the higher it is."""
    chance = np.random.default_rng(seed)
    of_source = chance.normal(0, 0.5, sources)
    rows = []
    for model, (clean, rise) in models.items():
        losses = clean + of_source - of_source.mean() + noise * chance.normal(0, 0.3, sources)
        rises = rise - 0.1 * (of_source - of_source.mean()) + noise * chance.normal(0, 1, sources)
        rows += [row(model, i, one, one + up) for i, (one, up) in enumerate(zip(losses, rises, strict=True))]
    return rows


def matched(clean: float, rise: float, noise: float = 0.0, path: list[str] | None = None, **given) -> MatchedDifference:
    rows = records({**PATH, "monotonic": (clean, rise)}, noise=noise, **given)
    return matched_difference([rows], "monotonic", path or list(PATH), 300, 0.95)


@pytest.mark.parametrize(
    ("clean", "curve", "between"),
    [
        (4.25, 0.5, ["base", "base@0.5"]),
        (3.9, 0.7, ["baseline", "base"]),
        (4.0, 0.6, ["base", "base@0.5"]),
        (5.0 - 1e-9, 0.2, ["base", "base@0.5"]),
    ],
)
def test_the_curve_is_read_at_the_model_s_own_clean_loss(clean, curve, between):
    found = matched(clean, 0.55)
    assert found.covered and found.between == between
    assert found.increase_nats_per_token.value == pytest.approx(0.55 - curve)
    assert found.increase_nats_per_token.p_value is None
    assert found.clean_loss_nats_per_token == pytest.approx(clean)


@pytest.mark.parametrize(("clean", "end"), [(5.2, "base@0.5"), (3.7, "baseline")])
def test_beyond_its_ends_the_curve_says_nothing(clean, end):
    found = matched(clean, 0.5)
    assert (found.covered, found.between, found.increase_nats_per_token) == (False, [end], None)


def test_what_looks_like_robustness_at_another_clean_loss_is_none_at_the_same():
    found = matched(4.5, 0.4, noise=0.05)
    low, high = found.increase_nats_per_token.interval
    assert low < 0 < high


def test_the_order_of_path_and_records_changes_nothing():
    rows = records({**PATH, "monotonic": (4.3, 0.5)}, noise=0.1)
    shuffled = random.Random(0).sample(rows, len(rows))
    one = matched_difference([rows], "monotonic", list(PATH), 300, 0.95)
    assert matched_difference([shuffled], "monotonic", list(PATH)[::-1], 300, 0.95) == one


@pytest.mark.parametrize("clean", [3.82, 3.9, 4.3])
def test_nominal_95_percent_cover(clean):
    hits = 0
    curve = np.interp(clean, [3.8, 4.0, 5.0], [0.8, 0.6, 0.2])
    for seed in range(120):
        found = matched(clean, curve, noise=0.2, seed=seed)
        if found.increase_nats_per_token:
            low, high = found.increase_nats_per_token.interval
            hits += low <= 0 <= high
        else:
            hits += 1
    assert hits / 120 >= 0.9


def test_the_curve_is_straight_between_its_points_and_flat_beyond():
    places = np.array([0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 9.0])
    found = on_curve(places, [1.0, 2.0, 4.0], [10.0, 20.0, 0.0])
    assert found.tolist() == [10.0, 10.0, 15.0, 20.0, 10.0, 0.0, 0.0]


def test_points_that_changed_places_stand_at_the_same():
    """[2, 1] counts as [2, 2]: from there on the second holds."""
    assert on_curve(np.array([1.5, 2.0, 3.0]), [2.0, 1.0, 4.0], [10.0, 20.0, 0.0]).tolist() == [10.0, 20.0, 10.0]


@pytest.mark.parametrize("path", [[], ["base", "monotonic"], ["base", "base"]])
def test_a_path_that_is_none_is_refused(path):
    with pytest.raises(ValueError, match="must hold models other than monotonic, each once"):
        matched_difference([records({**PATH, "monotonic": (4.3, 0.5)})], "monotonic", path, 300, 0.95)


def test_other_tokens_in_a_model_of_the_path_are_refused():
    rows = records({**PATH, "monotonic": (4.3, 0.5)})
    rows[3]["tokens_scored"] = 9
    with pytest.raises(
        ValueError, match=r"monotonic and base@0.5 were not attacked on the same tokens of document 003"
    ):
        matched_difference([rows], "monotonic", list(PATH), 300, 0.95)
