"""Token flips: what is replaced is never scored, the budget is the same for all, the control is paired."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tasks.attacks.configuration import FlipAttack
from tasks.attacks.flips import Flipped, flip, flips_of, random_flips
from tasks.attacks.scoring import Count, Victim
from tests.tasks.attacks.planted import END, POISON, planted, texts, usable
from tests.tasks.tiny import tiny_model

ATTACK = FlipAttack(flips=3, candidates=12, control_draws=4)


def tiny_victim() -> Victim:
    return Victim(tiny_model(length=40, vocabulary=40, seed=4), 0, 16)


def by_hand(victim: Victim, text: list[int], found: Flipped) -> tuple[float, float]:
    """(attacked, clean) loss of the tokens that were not replaced, from two plain forward passes."""
    kept = [i for i in range(len(text)) if i not in found.positions]
    clean, attacked = victim.losses([[], []], [text, found.tokens])
    return attacked[kept].sum().item(), clean[kept].sum().item()


def test_the_planted_weakness_is_found_and_random_flips_do_not_find_it():
    found, controls = [], []
    for text in texts():
        victim = planted()
        found.append(flip(victim, text, usable(), ATTACK))
        controls += random_flips(victim, text, usable(), len(found[-1].positions), 4, seed=5)
    assert all(POISON in flipped.tokens for flipped in found) and all(f.succeeded(ATTACK) for f in found)
    effect = np.mean([f.loss_sum_nats - f.clean_loss_sum_nats for f in found])
    chance = np.mean([f.loss_sum_nats - f.clean_loss_sum_nats for f in controls])
    assert effect > 2 * chance
    assert np.mean([POISON in control.tokens for control in controls]) < 0.3


@pytest.mark.parametrize("make", [planted, tiny_victim])
def test_only_tokens_that_were_not_replaced_are_scored(make):
    for text in texts():
        victim = make()
        for found in [flip(victim, text, usable(), ATTACK), *random_flips(victim, text, usable(), 3, 4, seed=1)]:
            changed = [i for i, (a, b) in enumerate(zip(text, found.tokens, strict=True)) if a != b]
            assert sorted(found.positions) == changed and len(changed) <= 3
            assert found.tokens_scored == len(text) - len(changed)
            attacked, clean = by_hand(victim, text, found)
            assert (found.loss_sum_nats, found.clean_loss_sum_nats) == pytest.approx((attacked, clean), rel=1e-6)


def test_written_tokens_are_usable_and_never_the_one_that_stood_there():
    few = torch.zeros(40, dtype=torch.bool)
    few[[3, 4, 5]] = True
    for text in texts():
        victim = tiny_victim()
        for found in [flip(victim, text, few, ATTACK), *random_flips(victim, text, few, 6, 4, seed=1)]:
            for position in found.positions:
                assert found.tokens[position] in (3, 4, 5) and found.tokens[position] != text[position] != END


def mean_increase(found: Flipped) -> float:
    return (found.loss_sum_nats - found.clean_loss_sum_nats) / found.tokens_scored


def test_with_every_replacement_as_a_candidate_each_flip_is_the_best_there_is():
    """Greedy by hand: the largest mean increase, against the clean text, of the tokens that nobody replaced."""
    victim, text = tiny_victim(), texts()[0][:6]
    clean = victim.losses([[]], [text])[0]
    tokens, flipped = list(text), []
    for _ in range(2):
        best = (0.0, -1, -1)
        for position in (p for p in range(6) if p not in flipped):
            kept = [i for i in range(6) if i not in (*flipped, position)]
            for token in (t for t in range(1, 40) if t != tokens[position]):
                changed = [*tokens[:position], token, *tokens[position + 1 :]]
                increase = (victim.losses([[]], [changed])[0] - clean)[kept].mean().item()
                best = max(best, (increase, position, token))
        _, position, token = best
        tokens[position] = token
        flipped.append(position)
    found = flip(victim, text, usable(), ATTACK.model_copy(update={"flips": 2, "candidates": 10_000}))
    assert found.tokens == tokens and found.positions == flipped


def test_a_flip_is_made_only_if_it_helps_and_after_a_failure_the_next_candidates_are_tried():
    failed_then_found = 0
    for text in texts(8):
        rounds = [
            flip(tiny_victim(), text, usable(), FlipAttack(flips=flips, candidates=1, documents=2))
            for flips in range(1, 6)
        ]
        increases = [mean_increase(found) for found in rounds]
        assert increases == sorted(increases) and increases[0] >= 0
        made = [len(found.positions) for found in rounds]
        failed_then_found += any(a == b < made[-1] for a, b in zip([0, *made], made, strict=False))
    assert failed_then_found > 0, "after a round without success another one had some"


def test_every_text_costs_the_same_whatever_is_found():
    costs = set()
    for make in (planted, tiny_victim):
        for text in texts():
            victim = make()
            flip(victim, text, usable(), ATTACK)
            costs.add((victim.count.forward_sequences, victim.count.backward_sequences))
    assert costs == {(1 + 3 * (1 + 12), 3)}


def test_of_a_short_text_at_most_half_is_replaced():
    assert [flips_of([1] * size, ATTACK) for size in (2, 3, 5, 6, 50)] == [1, 1, 2, 3, 3]
    found = flip(planted(), [7, 8], usable(), ATTACK)
    assert found.tokens_scored + len(found.positions) == 2 and found.tokens_scored >= 1


def test_the_control_is_the_same_for_every_model():
    text = texts()[1]
    weak, plain = (random_flips(make(), text, usable(), 3, 4, seed=9) for make in (planted, tiny_victim))
    assert [f.tokens for f in weak] == [f.tokens for f in plain]
    assert len({tuple(f.positions) for f in weak}) > 1, "draws differ"
    other = random_flips(planted(), texts()[2], usable(), 3, 4, seed=9)
    assert [f.positions for f in other] != [f.positions for f in weak], "texts differ"


def test_no_flip_leaves_the_text_as_it_is():
    (found,) = random_flips(planted(), texts()[0], usable(), 0, 1, seed=9)
    assert found.tokens == texts()[0] and found.loss_sum_nats == found.clean_loss_sum_nats


@pytest.mark.parametrize(("attacked", "succeeded"), [(11.4, False), (11.6, True)])
def test_success_is_a_relative_increase_above_the_threshold(attacked, succeeded):
    """Of the whole text, whose clean loss is 2 nats per token: 5 tokens of 8 are scored, and cost 3 nats each."""
    assert Flipped([1] * 8, [], 5, 5.0 + attacked, 15.0, 16.0).succeeded(ATTACK) is succeeded


def test_counting_starts_where_the_count_is_set():
    victim = planted()
    victim.count = Count()
    victim.losses([[]], [[1, 2]])
    assert victim.count == Count(1, 0)
