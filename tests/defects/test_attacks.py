"""D9, D12, D14, D16 to D18: attacks that scored their own tokens, cut their own trigger, or were not what was run."""

import numpy as np
import pytest
import torch

from tasks.attacks.candidates import best_of_each_position, estimated_effects
from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.attacks.flips import FlipSearch, random_flips, scored_tokens, writable_positions
from tasks.attacks.scoring import Victim
from tasks.attacks.texts import attacked_texts, round_trips, text_of, tokenizer_of, usable_tokens
from tasks.attacks.trigger import TriggerSearch, mean_loss
from tasks.language.model import token_losses
from tasks.language.stages import SetupConfig
from tasks.language.tokenizer import train_tokenizer
from tasks.robustness.stages import for_setup
from tasks.stage.run import Stage
from tests.tasks.attacks.planted import END, POISON, planted, texts, usable
from tests.tasks.tiny import Here, sentences, tiny_model, tiny_study

IMPLAUSIBLE = 35  # a token that the planted model hardly expects, and that does nothing to its expectations


def harmless() -> torch.Tensor:
    """Every token but the poison: nothing that may be written has an effect on any other token."""
    mask = usable()
    mask[POISON] = False
    return mask


def loss_of_all(victim: Victim, tokens: list[int]) -> float:
    """The earlier system's loss: labels are whatever stands there, the attacker's tokens too."""
    with torch.no_grad():
        return token_losses(victim.model, torch.tensor([[END, *tokens]])).mean().item()


def test_d09_attacks_that_are_learned_judged_and_reported_on_the_same_texts(tmp_path):
    """All texts of the earlier system began at the same offset of one stream."""
    study = tiny_study(tmp_path)
    setup = Stage("setup", SetupConfig, "tasks.language.setup:setup", needs="gpu")
    text = Here(tmp_path / "runs", study.name)(setup, for_setup(study)).as_input()
    tokenizer = tokenizer_of(text)
    ours = {
        split: {own.example_id for own in attacked_texts(text, tokenizer, split, 12)}
        for split in ("attack-search", "attack-evaluation", "test")
    }
    assert all(ours.values())
    assert not ours["attack-search"] & ours["attack-evaluation"]
    assert not ours["test"] & (ours["attack-search"] | ours["attack-evaluation"])


def test_d12_texts_of_an_attack_that_run_out_of_memory_are_an_error():
    """Half a batch was dropped, and the two arms were compared on different texts."""

    class Full(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = planted().model

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.inner.get_input_embeddings()

        def forward(self, input_ids=None, inputs_embeds=None):
            given = input_ids if inputs_embeds is None else inputs_embeds
            if given.shape[1] > 8:
                raise torch.OutOfMemoryError("no room")
            return self.inner(input_ids, inputs_embeds)

    own = [[1, 2, 3], list(range(1, 21)), [4, 5, 6]]

    with pytest.raises(torch.OutOfMemoryError):
        Victim(Full(), END, 4).losses([[]] * 3, own)
    with pytest.raises(torch.OutOfMemoryError):
        FlipSearch(Victim(Full(), END, 4), own[1], usable(), FlipAttack(candidates=4), seed=0).run()


def test_d14_hotflip_that_scores_the_tokens_it_wrote():
    """Any implausible token raises "the loss" by its own surprise; an attack without effect looks like a success."""
    attack = FlipAttack(flips=4, candidates=8)
    victim, text = planted(), texts()[0]
    old_text = [*text[:3], *[IMPLAUSIBLE] * 4, *text[7:]]
    old_increase = loss_of_all(victim, old_text) / loss_of_all(victim, text) - 1
    assert old_increase > attack.success_relative_increase, "the old measure calls it a success"

    found = FlipSearch(victim, text, harmless(), attack, seed=0).run()
    assert found.loss_sums[-1] == pytest.approx(found.loss_sums[0], rel=1e-6)
    scored_L = scored_tokens(text, writable_positions(text, attack, seed=0))
    for control in random_flips(text, harmless(), attack, seed=0):
        clean, attacked = (loss_L[scored_L].sum().item() for loss_L in victim.losses([[], []], [text, control]))
        assert attacked == pytest.approx(clean, rel=1e-6)


def test_hotflip_that_lets_each_search_choose_what_is_scored():
    """All but the tokens that were written: two models of one study shared one of four, and were compared."""
    attack, text = FlipAttack(flips=2, writable_tokens=6, candidates=8), texts()[0]
    searches = [
        FlipSearch(Victim(tiny_model(length=40, vocabulary=40, seed=seed), END, 16), text, usable(), attack, seed=0)
        for seed in (1, 2)
    ]
    written = [set(search.run().positions(text)) for search in searches]
    assert written[0] != written[1], "the old measure scores other tokens for each"
    assert torch.equal(searches[0].scored_L, searches[1].scored_L)
    assert not any(searches[0].scored_L[place] for place in written[0] | written[1])


def test_candidates_that_all_stand_at_one_position():
    """Of the best over position x vocabulary, 30 of 30 stood at one; the best promised +31.4 nats and cost 11.0."""
    gradient_PD, present = torch.ones(4, 3), [1, 2, 3, 4]
    gradient_PD[2] *= 100  # a steep place: its estimates are the largest and the least exact
    effects_PV = estimated_effects(gradient_PD, present, planted().embeddings_VD, usable())
    old = {place // effects_PV.shape[1] for place in torch.topk(effects_PV.flatten(), 8).indices.tolist()}
    assert old == {2}
    ours = best_of_each_position(effects_PV, range(4), 0, 8).replacements
    assert sorted(position for position, _ in ours) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_gradient_search_that_blind_search_beats():
    """The rule before lost to random search at equal forwards on every model, beside a control of one random draw."""
    attack, risen = FlipAttack(flips=3, candidates=30), {True: 0.0, False: 0.0}
    for with_gradient in risen:
        victim = planted(vocabulary=3000)
        for text in texts():
            search = FlipSearch(victim, text, usable(3000), attack, seed=0, with_gradient=with_gradient)
            found = search.run()
            risen[with_gradient] += found.loss_sums[-1] - found.loss_sums[0]
        risen[with_gradient] /= victim.count.as_forwards
    assert risen[True] > 4 * risen[False]


def test_a_gradient_that_replaces_one_token_of_a_trigger_only():
    """Wallace's `get_best_candidates` replaces one at every position, and found more than uat did at equal cost."""
    attack = TriggerAttack(trigger_tokens=3, restarts=1, iterations=2, candidates=6, batch_documents=4)
    search = TriggerSearch(planted(), texts(), usable(), attack, 5)
    search.step()
    assert search.victim.count.backward_sequences == 4 and search.state["trigger"] == [POISON] * 3


def test_d14_uat_that_scores_its_trigger():
    victim, trigger = planted(), [IMPLAUSIBLE] * 5
    old = np.mean([loss_of_all(victim, [*trigger, *text]) for text in texts()])
    old_clean = np.mean([loss_of_all(victim, text) for text in texts()])
    assert old > old_clean * 1.15, "the old measure sees an effect where there is none"
    assert mean_loss(victim, trigger, texts()) == pytest.approx(mean_loss(victim, [], texts()), rel=1e-6)


def test_d16_a_window_that_keeps_the_end_and_cuts_the_trigger():
    """Texts longer than the window lost the trigger in front of them: "triggers do nothing"."""
    window, trigger, long_text = 12, [POISON] * 3, [1 + i % 30 for i in range(40)]
    victim = planted()

    own = long_text[: window - len(trigger)]  # as `attacked_texts` cuts: the end
    (clean,), (attacked,) = victim.losses([[]], [own]), victim.losses([trigger], [own])
    assert len(clean) == len(attacked) == len(own) and (attacked > clean + 1).all()


def test_d16_a_configuration_whose_trigger_and_text_do_not_fit_is_refused(tmp_path):
    study = tiny_study(tmp_path)
    fields = study.model_dump()
    with pytest.raises(ValueError, match=r"uat.trigger_tokens and uat.text_tokens are 17 tokens together"):
        type(study).model_validate(fields | {"uat": fields["uat"] | {"text_tokens": 14}})


def test_d17_a_candidate_judged_on_fewer_texts_than_what_it_is_compared_with():
    """A loss over a few texts was compared with the loss over all: noise decides, and the trigger gets worse."""
    victim = Victim(tiny_model(length=40, vocabulary=40), END, 16)
    own = texts(12)
    attack = TriggerAttack(trigger_tokens=3, restarts=1, iterations=12, candidates=10, batch_documents=12)
    search = TriggerSearch(victim, own, usable(), attack, seed=1)
    losses = [mean_loss(victim, search.state["trigger"], own)]
    for _ in range(11):
        search.step()
        losses.append(mean_loss(victim, search.state["trigger"], own))
    assert losses == sorted(losses), "ours compares on the same texts"


def test_d17_models_that_share_one_random_stream():
    """What one model's search drew changed what the next one got."""
    attack = TriggerAttack(trigger_tokens=3, restarts=2, iterations=2, candidates=5, batch_documents=2)
    starts = []
    for model in (tiny_model(length=40, vocabulary=40, seed=1), tiny_model(length=40, vocabulary=40, seed=2)):
        search = TriggerSearch(Victim(model, END, 8), texts(), usable(), attack, seed=3)
        first = search.state["trigger"]
        batches = [search._batch(iteration) for iteration in range(4)]
        search.step(), search.step()
        starts.append((first, search.state["trigger"], batches))
    assert starts[0] == starts[1], "every model begins alike and looks at the same texts"


def test_d18_attacks_that_are_decoded_and_encoded_again():
    """The ids that were reported were not the ids that were measured."""
    tokenizer = train_tokenizer(sentences(300), 350)
    mask = usable_tokens(tokenizer, 350)
    chance = np.random.default_rng(0)
    triggers = [chance.choice(np.arange(1, 350), 5).tolist() for _ in range(50)]
    again = [tokenizer(text_of(tokenizer, ids), add_special_tokens=False)["input_ids"] for ids in triggers]
    assert sum(a != b for a, b in zip(triggers, again, strict=True)) > 25, "most triggers change on the way"

    victim = Victim(tiny_model(length=40, vocabulary=350), 0, 16)
    attack = TriggerAttack(trigger_tokens=5, restarts=1, iterations=6, candidates=20, batch_documents=4)
    search = TriggerSearch(victim, texts(), mask, attack, seed=1)
    while not search.finished:
        search.step()
    best = search.best()
    assert all(mask[token] for token in best["trigger_ids"])
    assert best["search_loss_nats_per_token"] == mean_loss(victim, best["trigger_ids"], texts())
    assert not round_trips(tokenizer, next(ids for ids, b in zip(triggers, again, strict=True) if ids != b))
