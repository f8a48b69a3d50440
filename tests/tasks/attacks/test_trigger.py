"""The trigger search: it finds what was planted, costs the same for every model, and goes on bit for bit."""

import json

import pytest
import torch

from tasks.attacks.candidates import estimated_effects
from tasks.attacks.configuration import TriggerAttack
from tasks.attacks.scoring import Victim, replaced
from tasks.attacks.trigger import TriggerSearch, control_triggers, mean_loss, random_tokens
from tests.tasks.attacks.planted import POISON, Masked, planted, texts, usable
from tests.tasks.tiny import tiny_model

ATTACK = TriggerAttack(trigger_tokens=3, restarts=2, iterations=8, candidates=10, batch_documents=4)


def searched(
    victim: Victim, own=None, mask=None, attack: TriggerAttack = ATTACK, seed: int = 5, with_gradient: bool = True
) -> TriggerSearch:
    mask = usable() if mask is None else mask
    search = TriggerSearch(victim, own or texts(), mask, attack, seed, with_gradient=with_gradient)
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


def test_the_best_of_each_position_is_kept_and_the_next_is_tried_in_what_was_kept():
    attack = ATTACK.model_copy(update={"batch_documents": 6, "restarts": 1, "candidates": 12})
    victim, mask, own = Victim(tiny_model(length=40, seed=2), 0, 16), usable().new_ones(61), texts()
    search, several = TriggerSearch(victim, own, mask, attack, 5), 0
    for _ in range(4):
        before = trigger = search.state["trigger"]
        gradients = victim.gradients([before] * 6, own, [torch.ones(12, dtype=torch.bool)] * 6)
        effects = estimated_effects(sum(gradient[:3] for gradient in gradients), before, victim.embeddings_VD, mask)
        for position in effects.max(1).values.argsort(descending=True).tolist():
            four = [replaced(trigger, position, token) for token in effects[position].topk(4).indices.tolist()]
            trigger = max([trigger, *four], key=lambda tried: mean_loss(victim, tried, own))
        search.step()
        assert search.state["trigger"] == trigger
        several += sum(old != new for old, new in zip(before, trigger, strict=True)) > 1
    assert several, "one gradient replaced several tokens"


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


def test_the_blind_search_spends_exactly_as_many_forwards_as_the_gradient_counts_as():
    attack = ATTACK
    gradient, blind = (searched(planted(), attack=attack, with_gradient=with_) for with_ in (True, False))
    assert gradient.victim.count.backward_sequences > 0 == blind.victim.count.backward_sequences
    assert blind.victim.count.forward_sequences == gradient.victim.count.as_forwards


def test_both_searches_begin_alike_and_read_the_same_texts():
    gradient, blind = (TriggerSearch(planted(), texts(), usable(), ATTACK, 5, with_gradient=g) for g in (True, False))
    assert gradient.state == blind.state and gradient._batch(3) == blind._batch(3)


def test_where_the_gradient_tells_the_truth_it_beats_the_blind_search_at_equal_cost():
    """One poison among 3000 tokens."""
    attack = ATTACK.model_copy(update={"candidates": 100, "restarts": 1})
    best = {}
    for with_gradient in (True, False):
        victim = planted(vocabulary=3000)
        best[with_gradient] = searched(victim, mask=usable(3000), attack=attack, with_gradient=with_gradient).best()
    losses = {key: found["search_loss_nats_per_token"] for key, found in best.items()}
    assert POISON in best[True]["trigger_ids"] and losses[True] > losses[False] + 3.0


def test_where_the_gradient_is_masked_the_blind_search_beats_it():
    searches = {}
    for with_gradient in (True, False):
        victim = planted(model=Masked, vocabulary=3000)
        searches[with_gradient] = searched(victim, mask=usable(3000), with_gradient=with_gradient)
    losses = {key: search.best()["search_loss_nats_per_token"] for key, search in searches.items()}
    assert losses[False] > losses[True] + 3.0


def test_a_share_of_the_budget_gives_what_a_search_that_ended_there_would_answer():
    attack = ATTACK.model_copy(update={"iterations": 10})  # 20 in all: after 2, 6 and 20
    victim, mask = Victim(tiny_model(length=40, seed=2), 0, 16), usable().new_ones(61)
    found = searched(victim, mask=mask, attack=attack)
    search = TriggerSearch(victim, texts(), mask, attack, 5)
    presents = [search.state["trigger"]]
    for _ in range(9):
        search.step()
        presents.append(search.state["trigger"])
    assert presents[2] != presents[6]
    assert found.state["budgets"] == {"0.1": presents[2], "0.3": presents[6], "1": found.best()["trigger_ids"]}


def test_a_search_of_one_iteration_keeps_every_share_of_its_budget():
    found = searched(planted(), attack=ATTACK.model_copy(update={"restarts": 1, "iterations": 1}))
    assert found.state["budgets"] == dict.fromkeys(["0.1", "0.3", "1"], found.best()["trigger_ids"])


def test_while_the_second_restart_runs_the_first_is_what_was_found():
    attack = ATTACK.model_copy(update={"restarts": 5, "iterations": 4})  # 20 in all: 6 is within the second
    search = searched(Victim(tiny_model(length=40, seed=2), 0, 16), mask=usable().new_ones(61), attack=attack)
    assert search.state["budgets"]["0.3"] == search.state["restarts"][0]["trigger_ids"]


@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize("cut", range(0, 16, 5))
def test_a_search_that_was_cut_anywhere_ends_the_same(cut, with_gradient):
    attack = ATTACK
    whole = searched(planted(), attack=attack, with_gradient=with_gradient).state
    search = TriggerSearch(planted(), texts(), usable(), attack, 5, with_gradient=with_gradient)
    for _ in range(cut):
        search.step()
    state = json.loads(json.dumps(search.state)) if cut else None
    again = TriggerSearch(planted(), texts(), usable(), attack, 5, with_gradient=with_gradient, state=state)
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


def test_models_share_no_random_stream():
    """What one model's search drew changed what the next one got."""
    attack, starts = ATTACK.model_copy(update={"iterations": 2}), []
    for seed in (1, 2):
        victim = Victim(tiny_model(length=40, vocabulary=40, seed=seed), 0, 8)
        search = TriggerSearch(victim, texts(), usable(), attack, 3)
        first = search.state["trigger"]
        batches = [search._batch(iteration) for iteration in range(4)]
        search.step(), search.step()
        starts.append((first, search.state["trigger"], batches))
    assert starts[0] == starts[1], "every model begins alike and looks at the same texts"
