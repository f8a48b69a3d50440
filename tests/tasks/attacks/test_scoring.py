"""The loss of attacked texts, and the gradient that guides the search: by hand, alone, and in every batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from storage.errors import CheckFailed
from tasks.attacks.scoring import Victim, best_replacements
from tasks.language.model import load, token_losses
from tests.tasks.attacks.planted import POISON, planted, texts, usable
from tests.tasks.tiny import finished_study, tiny_model


def tiny_victim(batch: int = 4) -> Victim:
    return Victim(tiny_model(length=40), 0, batch)


def uneven() -> tuple[list[list[int]], list[list[int]]]:
    """Prefixes of 0 to 5 tokens before texts of 1 to 30."""
    chance = np.random.default_rng(3)
    prefixes = [chance.integers(1, 61, size).tolist() for size in (0, 5, 2, 0, 1, 5, 3)]
    return prefixes, [chance.integers(1, 61, size).tolist() for size in (30, 1, 17, 2, 30, 9, 4)]


def alone(victim: Victim, prefix: list[int], text: list[int]) -> list[float]:
    """One sequence, no padding: the losses of the last len(text) tokens."""
    with torch.no_grad():
        return token_losses(victim.model, torch.tensor([[0, *prefix, *text]]))[0, -len(text) :].double().tolist()


@pytest.mark.parametrize("batch", [1, 2, 3, 64])
def test_a_text_s_losses_do_not_depend_on_batch_padding_or_chunks(batch):
    victim, (prefixes, own) = tiny_victim(batch), uneven()
    found = victim.losses(prefixes, own)
    for prefix, text, losses in zip(prefixes, own, found, strict=True):
        assert losses.tolist() == pytest.approx(alone(victim, prefix, text), rel=1e-5)
        assert losses.dtype == torch.float64 and len(losses) == len(text)
    assert victim.count.forward_sequences == len(own) and victim.count.backward_sequences == 0


def test_only_the_text_is_scored_and_the_same_tokens_with_and_without_a_prefix():
    victim, (text, *_) = planted(), texts()
    clean, attacked = victim.losses([[], [7, 21, 9, 2]], [text, text])
    assert len(clean) == len(attacked) == len(text)
    assert attacked.tolist() == pytest.approx(clean.tolist(), rel=1e-6), "without poison a prefix changes nothing"


def test_the_planted_poison_raises_the_loss_of_every_token_behind_it():
    victim, (text, *_) = planted(), texts()
    clean, attacked = victim.losses([[], [POISON]], [text, text])
    assert len(attacked) == len(text) and (attacked > clean + 0.25).all()


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_gradients_are_those_of_each_sequence_alone(batch):
    victim, (prefixes, own) = tiny_victim(batch), uneven()
    scored = [torch.tensor([i % 3 != 1 for i in range(len(text))]) for text in own]
    found = victim.gradients(prefixes, own, scored)
    for prefix, text, counted, gradient_LD in zip(prefixes, own, scored, found, strict=True):
        embedded = victim.embeddings_VD[torch.tensor([[0, *prefix, *text]])].detach().requires_grad_()
        logits = victim.model(inputs_embeds=embedded).logits[0, :-1].log_softmax(-1)
        losses = -logits[torch.arange(len(prefix) + len(text)), torch.tensor([*prefix, *text])]
        losses[len(prefix) :][counted].sum().backward()
        assert torch.allclose(gradient_LD, embedded.grad[0, 1:], atol=1e-5, rtol=1e-4)
    assert victim.count.forward_sequences == victim.count.backward_sequences == len(own)


def test_a_loss_that_is_no_number_is_an_error_and_never_the_best_candidate():
    victim = tiny_victim()
    victim.model.get_output_embeddings().weight.data[7] = float("nan")
    with pytest.raises(CheckFailed, match="finite"):
        victim.losses([[]], [[5, 6, 7]])


def test_the_model_keeps_no_cache_for_generation():
    assert finished_study().path("base").is_dir()
    assert load(finished_study().path("base") / "model").config.use_cache is False


def test_a_token_that_no_scored_token_follows_has_no_gradient():
    victim, text = tiny_victim(), [5, 6, 7, 8, 9, 10]
    scored = torch.tensor([True, True, True, False, False, False])
    (gradient_LD,) = victim.gradients([[]], [text], [scored])
    assert gradient_LD.shape == (6, 16) and (gradient_LD[2:] == 0).all() and (gradient_LD[:2] != 0).any(1).all()


def test_attacking_leaves_the_weights_as_they_are():
    victim = Victim(tiny_model(length=40).train(), 0, 4)
    before = {name: p.clone() for name, p in victim.model.named_parameters()}
    victim.gradients([[3]], [[5, 6, 7]], [torch.ones(3, dtype=torch.bool)])
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in victim.model.named_parameters())
    assert not victim.model.training


def ranked(skip: int = 0, count: int = 5, allowed: torch.Tensor | None = None, places: torch.Tensor | None = None):
    generator = torch.Generator().manual_seed(1)
    gradient, embeddings = torch.randn(4, 3, generator=generator), torch.randn(20, 3, generator=generator)
    allowed = torch.ones(20, dtype=torch.bool) if allowed is None else allowed
    places = torch.ones(4, dtype=torch.bool) if places is None else places
    present = [2, 19, 7, 7]
    scores = {
        (p, v): float((embeddings[v] - embeddings[present[p]]) @ gradient[p])
        for p in range(4)
        for v in range(20)
        if allowed[v] and places[p] and v != present[p]
    }
    expected = sorted(scores, key=scores.get, reverse=True)
    return best_replacements(gradient, present, embeddings, allowed, places, skip, count), expected


def test_replacements_are_the_best_to_first_order_over_the_whole_vocabulary():
    found, expected = ranked()
    assert found == expected[:5]
    found, expected = ranked(skip=5)
    assert found == expected[5:10]


def test_the_same_token_unusable_ones_and_closed_positions_are_left_out():
    allowed, places = torch.arange(20) % 3 == 1, torch.tensor([True, False, True, True])
    found, expected = ranked(count=1000, allowed=allowed, places=places)
    assert found == expected and len(found) == 7 + 6 + 6


def test_after_the_last_candidates_the_best_come_again():
    found, expected = ranked(skip=76 - 5 + 1)
    assert len(expected) == 76 and found == expected[:5]


def test_the_gradient_points_at_the_planted_poison():
    victim, (text, *_) = planted(), texts()
    (gradient_LD,) = victim.gradients([[5, 6, 7]], [text], [torch.ones(len(text), dtype=torch.bool)])
    replacements = best_replacements(
        gradient_LD[:3], [5, 6, 7], victim.embeddings_VD, usable(), torch.ones(3, dtype=torch.bool), 0, 3
    )
    assert [token for _, token in replacements] == [POISON] * 3
