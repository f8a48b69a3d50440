"""Which replacements are tried: the best of every position in turn, or blind draws."""

import numpy as np
import pytest
import torch

from tasks.attacks.candidates import best_of_each_position, blind, estimated_effects
from tests.tasks.attacks.planted import POISON, planted, texts, usable

PRESENT, POSITIONS = [2, 19, 7], [4, 5, 9]


def effects(allowed: torch.Tensor | None = None) -> tuple[torch.Tensor, list[dict[int, float]]]:
    """Estimates of 3 positions x 20 tokens, and by hand: position -> token -> estimate of those that may be written."""
    generator = torch.Generator().manual_seed(1)
    gradient, embeddings = torch.randn(3, 4, generator=generator), torch.randn(20, 4, generator=generator)
    allowed = torch.ones(20, dtype=torch.bool) if allowed is None else allowed
    by_hand = [
        {v: float((embeddings[v] - embeddings[x]) @ gradient[p]) for v in range(20) if allowed[v] and v != x}
        for p, x in enumerate(PRESENT)
    ]
    return estimated_effects(gradient, PRESENT, embeddings, allowed), by_hand


def in_turn(by_hand: list[dict[int, float]]) -> list[tuple[int, int]]:
    """Rank by rank, and within a rank by the estimate."""
    ranked = [sorted(own.items(), key=lambda item: -item[1]) for own in by_hand]
    found = []
    for rank in range(max(map(len, ranked))):
        here = [(own[rank][1], POSITIONS[p], own[rank][0]) for p, own in enumerate(ranked) if rank < len(own)]
        found += [(position, token) for _, position, token in sorted(here, reverse=True)]
    return found


@pytest.mark.parametrize(("skip", "count"), [(0, 5), (5, 5), (0, 57), (50, 7), (0, 1)])
def test_positions_take_turns_each_with_its_best_tokens(skip, count):
    estimates, by_hand = effects()
    found = best_of_each_position(estimates, POSITIONS, skip, count)
    assert found == in_turn(by_hand)[skip : skip + count]


def test_a_steep_position_does_not_take_all_candidates():
    """The rule before: the best over position x vocabulary, which all stood at one position."""
    estimates, _ = effects()
    estimates[1] = estimates[1] * 100
    found = best_of_each_position(estimates, POSITIONS, 0, 6)
    assert sorted(position for position, _ in found) == [4, 4, 5, 5, 9, 9]


def test_what_stands_there_and_what_is_not_usable_is_never_a_candidate():
    allowed = torch.arange(20) % 3 == 1  # 7 tokens; two of the three that stand there are among them
    estimates, by_hand = effects(allowed)
    found = best_of_each_position(estimates, POSITIONS, 0, 19)
    assert found == in_turn(by_hand) and len(set(found)) == 19 == 6 + 6 + 7
    chance = np.random.default_rng(0)
    drawn = blind(PRESENT, POSITIONS, allowed, 500, chance)
    assert set(drawn) == set(found), "all of these, and no other"


def test_after_the_last_candidate_the_first_comes_again_and_the_number_is_always_the_same():
    estimates, by_hand = effects()
    every = in_turn(by_hand)
    assert best_of_each_position(estimates, POSITIONS, 55, 5) == [*every[55:], *every[:3]]
    assert best_of_each_position(estimates, POSITIONS, 0, 60) == [*every, *every[:3]]


def test_blind_draws_are_alike_for_every_position_and_token():
    few = torch.zeros(20, dtype=torch.bool)
    few[[2, 3, 5, 11]] = True
    drawn = blind([2, 19], [7, 8], few, 7000, np.random.default_rng(0))
    counts = {pair: drawn.count(pair) for pair in set(drawn)}
    assert {pair for pair in counts if pair[0] == 7} == {(7, 3), (7, 5), (7, 11)}
    assert {pair for pair in counts if pair[0] == 8} == {(8, 2), (8, 3), (8, 5), (8, 11)}
    assert all(abs(n - 3500 / (3 if position == 7 else 4)) < 150 for (position, _), n in counts.items())


def test_the_gradient_points_at_the_planted_poison():
    victim, (text, *_) = planted(), texts()
    (gradient_LD,) = victim.gradients([[5, 6, 7]], [text], [torch.ones(len(text), dtype=torch.bool)])
    estimates = estimated_effects(gradient_LD[:3], [5, 6, 7], victim.embeddings_VD, usable())
    assert [token for _, token in best_of_each_position(estimates, [0, 1, 2], 0, 3)] == [POISON] * 3
