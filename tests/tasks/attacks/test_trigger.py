"""The trigger search: it finds what was planted, costs the same for every model, and goes on bit for bit."""

from __future__ import annotations

import json

import pytest

from tasks.attacks.configuration import TriggerAttack
from tasks.attacks.scoring import Victim
from tasks.attacks.trigger import TriggerSearch, control_triggers, mean_loss, random_tokens
from tests.tasks.attacks.planted import POISON, planted, texts, usable
from tests.tasks.tiny import tiny_model

ATTACK = TriggerAttack(trigger_tokens=3, restarts=2, iterations=8, candidates=10, batch_documents=4)


def searched(victim: Victim, own=None, mask=None, attack: TriggerAttack = ATTACK, seed: int = 5) -> TriggerSearch:
    search = TriggerSearch(victim, own or texts(), usable() if mask is None else mask, attack, seed)
    while not search.finished:
        search.step()
    return search


def test_the_planted_weakness_is_found_and_random_triggers_do_not_find_it():
    victim = planted()
    trigger = searched(victim).best()["trigger_ids"]
    assert trigger == [POISON] * 3
    clean, attacked = mean_loss(victim, [], texts()), mean_loss(victim, trigger, texts())
    random = [mean_loss(victim, control, texts()) for control in control_triggers(usable(), ATTACK, 5)]
    assert attacked > clean + 5.0
    assert sum(random) / len(random) < clean + 1.0


def test_the_search_raises_the_loss_of_an_ordinary_network_above_that_of_random_triggers():
    victim = Victim(tiny_model(length=40, seed=2), 0, 16)
    mask = usable().new_ones(61)
    search = searched(victim, mask=mask)
    best = search.best()
    assert best["search_loss_nats_per_token"] == pytest.approx(mean_loss(victim, best["trigger_ids"], texts()))
    assert best["search_loss_nats_per_token"] == max(r["search_loss_nats_per_token"] for r in search.state["restarts"])
    controls = [mean_loss(victim, control, texts()) for control in control_triggers(mask, ATTACK, 5)]
    assert best["search_loss_nats_per_token"] > max(controls)


def test_an_iteration_never_lowers_the_loss_of_the_texts_it_reads():
    everything = ATTACK.model_copy(update={"batch_documents": 6, "restarts": 1})
    victim = Victim(tiny_model(length=40, seed=2), 0, 16)
    search = TriggerSearch(victim, texts(), usable().new_ones(61), everything, 5)
    losses = [mean_loss(victim, search.state["trigger"], texts())]
    for _ in range(everything.iterations - 1):
        search.step()
        losses.append(mean_loss(victim, search.state["trigger"], texts()))
    assert losses == sorted(losses) and losses[-1] > losses[0]


def test_when_no_candidate_helps_the_next_ones_are_tried():
    greedy = ATTACK.model_copy(update={"candidates": 1, "batch_documents": 6, "restarts": 1, "iterations": 30})
    victim = Victim(tiny_model(length=40, seed=2), 0, 16)
    search = TriggerSearch(victim, texts(), usable().new_ones(61), greedy, 5)
    seen = []
    for _ in range(29):
        search.step()
        seen.append((search.state["skip"], tuple(search.state["trigger"])))
    assert any(skip > 0 for skip, _ in seen)
    failed = next(i for i, (skip, _) in enumerate(seen) if skip > 0)
    assert any(trigger != seen[failed][1] for _, trigger in seen[failed:]), "it went on after a failure"


def test_other_texts_rank_anew():
    """Only where every iteration uses the same texts would the same candidates come again."""
    few = ATTACK.model_copy(update={"candidates": 1, "batch_documents": 2, "restarts": 1, "iterations": 20})
    search = TriggerSearch(Victim(tiny_model(length=40, seed=2), 0, 16), texts(), usable().new_ones(61), few, 5)
    for _ in range(19):
        search.step()
        assert search.state["skip"] == 0


def test_every_model_spends_the_same_whatever_the_search_finds():
    plain = searched(Victim(tiny_model(length=40, vocabulary=40), 0, 16)).state["count"]
    weak = searched(planted()).state["count"]
    per_restart = 8 * (4 + 4 * (1 + 10)) + 6  # iterations x (gradient + present and candidates), then all texts
    assert plain == weak == {"forward_sequences": 2 * per_restart, "backward_sequences": 2 * 8 * 4}


@pytest.mark.parametrize("cut", range(0, 16, 3))
def test_a_search_that_was_cut_anywhere_ends_the_same(cut):
    whole = searched(planted()).state
    search = TriggerSearch(planted(), texts(), usable(), ATTACK, 5)
    for _ in range(cut):
        search.step()
    state = json.loads(json.dumps(search.state)) if cut else None
    again = TriggerSearch(planted(), texts(), usable(), ATTACK, 5, state)
    while not again.finished:
        again.step()
    assert again.state == whole


def test_the_mean_loss_is_weighted_by_tokens():
    victim, own = planted(), [[1, 2], [3, 4, 5, 35, 36, 37]]
    losses = [loss for text in own for loss in victim.losses([[7]], [text])[0].tolist()]
    assert mean_loss(victim, [7], own) == pytest.approx(sum(losses) / 8)


def test_each_pass_reads_every_search_text_once():
    search = TriggerSearch(planted(), texts(10), usable(), ATTACK, 5)
    used = [i for iteration in range(5) for i in search._batch(iteration)]
    assert sorted(used[:10]) == sorted(used[10:]) == list(range(10)) and used[:10] != used[10:]
    few = TriggerSearch(planted(), texts(2), usable(), ATTACK, 5)
    assert sorted(few._batch(3)) == [0, 1]


def test_starts_and_controls_are_usable_and_depend_on_the_seed_alone():
    mask = usable()
    starts = [random_tokens(mask, 50, [seed, 0, 0]) for seed in (1, 1, 2)]
    assert starts[0] == starts[1] != starts[2] and all(mask[token] for token in starts[0])
    search = TriggerSearch(planted(), texts(), mask, ATTACK.model_copy(update={"iterations": 1}), 1)
    first = search.state["trigger"]
    search.step()
    assert len(search.state["restarts"]) == 1 and search.state["trigger"] != first, "each restart has its own start"
    controls = control_triggers(mask, ATTACK, 1)
    assert len(controls) == ATTACK.control_triggers and len({tuple(c) for c in controls}) == len(controls)
    assert controls == control_triggers(mask, ATTACK, 1) != control_triggers(mask, ATTACK, 2)
    assert all(len(control) == 3 for control in controls)
