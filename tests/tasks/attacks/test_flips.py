"""Token flips: what may be replaced is never scored, the budget is the same for all, the control is paired."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from storage.errors import CheckFailed
from tasks.attacks.configuration import FlipAttack
from tasks.attacks.flips import (
    Flipped,
    FlipSearch,
    flips_of,
    random_flips,
    scored_tokens,
    writable_positions,
    written_into,
)
from tasks.attacks.scoring import Victim
from tests.tasks.attacks.planted import END, POISON, Masked, planted, texts, usable
from tests.tasks.tiny import tiny_model

ATTACK = FlipAttack(flips=3, candidates=12, control_draws=4)


def tiny_victim() -> Victim:
    return Victim(tiny_model(length=40, vocabulary=40, seed=4), 0, 16)


def changed(**fields) -> FlipAttack:
    return ATTACK.model_copy(update=fields)


def flip(
    victim: Victim, text: list[int], attack: FlipAttack = ATTACK, mask=None, with_gradient: bool = True
) -> Flipped:
    mask = usable() if mask is None else mask
    return FlipSearch(victim, text, mask, attack, 9, with_gradient=with_gradient).run()


def increase(victim: Victim, text: list[int], tokens: list[int], attack: FlipAttack = ATTACK) -> float:
    """Of the tokens that nobody may write, in nats per token, by two plain forward passes."""
    kept = [i for i in range(len(text)) if i not in writable_positions(text, attack, 9)]
    clean, attacked = victim.losses([[], []], [text, tokens])
    return (attacked - clean)[kept].mean().item()


def test_the_planted_weakness_is_found_and_random_flips_do_not_find_it():
    found, controls = [], []
    for text in texts():
        victim = planted()
        tokens = flip(victim, text).tokens
        assert POISON in tokens
        found.append(increase(victim, text, tokens))
        controls += [increase(victim, text, drawn) for drawn in random_flips(text, usable(), ATTACK, 9)]
    assert np.mean(found) > 2 * np.mean(controls)


@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize("make", [planted, tiny_victim])
def test_only_writable_tokens_are_replaced_and_only_others_scored(make, with_gradient):
    attack = changed()
    for text in texts():
        writable = writable_positions(text, attack, 9)
        found = flip(make(), text, attack, with_gradient=with_gradient)
        for tokens in (found.tokens, *found.after_shares, *random_flips(text, usable(), attack, 9)):
            differ = [i for i, (a, b) in enumerate(zip(text, tokens, strict=True)) if a != b]
            assert set(differ) <= set(writable) and len(differ) <= 3
        assert found.positions(text) == [i for i, (a, b) in enumerate(zip(text, found.tokens, strict=True)) if a != b]
        kept = [i for i in range(len(text)) if i not in writable]
        clean, attacked = make().losses([[], []], [text, found.tokens])
        assert found.loss_sums[0] == pytest.approx(clean[kept].sum().item(), rel=1e-6)
        assert found.loss_sums[-1] == pytest.approx(attacked[kept].sum().item(), rel=1e-6)


def test_which_tokens_may_be_written_depends_on_seed_and_text_alone_and_is_at_most_half():
    text = texts()[0]
    drawn = [writable_positions(text, ATTACK, seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2] and drawn[0] == sorted(set(drawn[0])) and len(drawn[0]) == 6
    assert writable_positions(texts()[1], ATTACK, 1) != drawn[0]
    assert [len(writable_positions(text[:size], ATTACK, 1)) for size in (2, 3, 5, 12)] == [1, 1, 2, 6]
    every = {place for seed in range(60) for place in writable_positions(text, ATTACK, seed)}
    assert every == set(range(11)), "the last token is read by no prediction"
    scored = scored_tokens(text, drawn[0])
    assert [i for i, counts in enumerate(scored.tolist()) if not counts] == drawn[0]


@pytest.mark.parametrize("with_gradient", [True, False])
def test_written_tokens_are_usable_and_never_the_one_that_stood_there(with_gradient):
    few = torch.zeros(40, dtype=torch.bool)
    few[[3, 4, 5]] = True
    for text in texts():
        found = flip(tiny_victim(), text, mask=few, with_gradient=with_gradient)
        for tokens in (found.tokens, *random_flips(text, few, changed(flips=6), 9)):
            for old, new in zip(text, tokens, strict=True):
                assert new == old or new in (3, 4, 5)
        assert all(
            sum(a != b for a, b in zip(text, drawn, strict=True)) == 3 for drawn in random_flips(text, few, ATTACK, 9)
        )


def test_with_every_replacement_as_a_candidate_each_flip_is_the_best_there_is():
    """Greedy by hand, over the writable tokens and then over those that were replaced."""
    victim, text, attack = tiny_victim(), texts()[0][:8], changed(flips=2, candidates=1000, rounds=3)
    writable, tokens = writable_positions(text, attack, 9), list(texts()[0][:8])
    kept = [i for i in range(8) if i not in writable]
    for _ in range(3):
        now = victim.losses([[]], [tokens])[0][kept].sum().item()
        differ = [i for i in range(8) if tokens[i] != text[i]]
        options = [
            (position, token)
            for position in (differ if len(differ) == 2 else writable)
            for token in range(1, 40)
            if token != tokens[position]
        ]
        tried = [[*tokens[:p], token, *tokens[p + 1 :]] for p, token in options]
        sums = [loss[kept].sum().item() for loss in victim.losses([[]] * len(tried), tried)]
        if max(sums) > now:
            tokens = tried[int(np.argmax(sums))]
    assert flip(victim, text, attack).tokens == tokens


@pytest.mark.parametrize("with_gradient", [True, False])
def test_a_round_never_lowers_the_loss_and_after_a_failure_others_are_tried(with_gradient):
    failed_then_found = 0
    for text in texts(8):
        found = flip(tiny_victim(), text, changed(candidates=1, rounds=12), None, with_gradient)
        sums = found.loss_sums
        assert sums == sorted(sums) and len(sums) == 13
        failed_then_found += any(a == b < sums[-1] for a, b in pairwise(sums))
    assert failed_then_found > 0, "after a round without success another one had some"


def test_after_all_flips_are_made_they_are_made_better():
    """More rounds than flips: a token that was replaced may be replaced again, and no further one."""
    better = 0
    for text in texts():
        found = flip(tiny_victim(), text, changed(flips=2, rounds=8))
        assert len(found.positions(text)) == 2
        better += found.loss_sums[-1] > found.loss_sums[2] > found.loss_sums[0]
    assert better > 0


def test_every_text_and_model_costs_the_same_and_the_blind_search_as_many_forwards():
    costs, attack = set(), changed(rounds=5)
    for make in (planted, tiny_victim):
        for text in [*texts(), [7, 8]]:
            gradient, blind = make(), make()
            found = [flip(gradient, text, attack), flip(blind, text, attack, with_gradient=False)]
            assert [own.count for own in found] == [gradient.count, blind.count]
            costs.add((gradient.count.forward_sequences, gradient.count.backward_sequences))
            assert blind.count.forward_sequences == gradient.count.as_forwards == 1 + 5 * attack.forwards_of_a_step
            assert blind.count.backward_sequences == 0
    assert costs == {(1 + 5 * (1 + 12), 5)}


def test_the_rounds_are_twice_the_flips_unless_told():
    assert (ATTACK.rounds_on_a_text, changed(rounds=4).rounds_on_a_text) == (6, 4)


def test_a_share_of_the_budget_gives_what_a_shorter_search_finds():
    text, attack = texts()[2], changed(rounds=10)
    found = flip(tiny_victim(), text, attack)
    shorter = [flip(tiny_victim(), text, changed(rounds=rounds)).tokens for rounds in (1, 3, 10)]
    assert found.after_shares == shorter and found.after_shares[-1] == found.tokens
    (first, *_) = flip(tiny_victim(), text, changed(rounds=4)).after_shares
    assert first == flip(tiny_victim(), text, changed(rounds=1)).tokens, "a tenth of four rounds is one of them"


def test_where_the_gradient_tells_the_truth_it_beats_the_blind_search_at_equal_cost():
    """One poison among 3000 tokens."""
    sums = {True: 0.0, False: 0.0}
    for with_gradient in sums:
        for text in texts():
            victim, attack = planted(vocabulary=3000), changed(candidates=30)
            found = flip(victim, text, attack, usable(3000), with_gradient)
            sums[with_gradient] += found.loss_sums[-1] - found.loss_sums[0]
    assert sums[True] > 4 * sums[False] and sums[True] > 10.0


def test_where_the_gradient_is_masked_the_blind_search_beats_it():
    sums = {True: 0.0, False: 0.0}
    for with_gradient in sums:
        for text in texts():
            found = flip(planted(model=Masked, vocabulary=3000), text, ATTACK, usable(3000), with_gradient)
            sums[with_gradient] += found.loss_sums[-1] - found.loss_sums[0]
    assert sums[False] > sums[True] + 10.0


def test_of_a_short_text_at_most_half_is_replaced():
    assert [flips_of([1] * size, ATTACK) for size in (2, 3, 5, 6, 50)] == [1, 1, 2, 3, 3]
    assert flip(planted(), [7, 8]).tokens[1] == 8, "one token is left to score"


def test_the_control_is_a_function_of_seed_and_text():
    text = texts()[1]
    drawn = random_flips(text, usable(), ATTACK, 9)
    assert drawn == random_flips(text, usable(), ATTACK, 9) != random_flips(text, usable(), ATTACK, 8)
    assert len(drawn) == 4 == len({tuple(tokens) for tokens in drawn}), "draws differ"
    assert all(tokens.count(END) == 0 for tokens in drawn)


@pytest.mark.parametrize(("places", "tokens"), [([3], [7]), ([-1], [7]), ([0, 1], [7])])
def test_what_a_record_writes_outside_of_its_text_is_refused(places: list[int], tokens: list[int]) -> None:
    with pytest.raises(CheckFailed, match="positions of document a are of its text"):
        written_into([1, 2, 3], {"example_id": "a", "positions": places, "replacements": tokens})
