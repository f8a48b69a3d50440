"""Encoder-decoders under attack: the reference alone is scored, and nothing that is read is ever cut."""

import numpy as np
import pytest
import torch

from tasks.attacks.configuration import FlipAttack, TriggerAttack
from tasks.attacks.flips import FlipSearch, random_flips, scored_tokens, writable_positions
from tasks.attacks.texts import PairVictim
from tasks.attacks.trigger import TriggerSearch
from tasks.language.result import PackedPairs
from tasks.language.texts import Text
from tests.tasks.language.test_pairs import END, network

PACKED = PackedPairs(
    dtype="uint16", sequence_length=40, blocks=1, tokens=4, dropped_tokens=0, sha256="", article_tokens=30,
    articles_cut=0, summaries_cut=0, prefix_ids=[7, 8], end_of_text_id=END, padding_id=END,
)  # fmt: skip
USABLE = torch.arange(50) >= 10


def victim(batch: int = 3) -> PairVictim:
    return PairVictim(network("copying"), END, batch, packed=PACKED)


def texts(count: int = 5) -> list[Text]:
    chance = np.random.default_rng(2)
    made = []
    for number in range(count):
        tokens = chance.integers(10, 50, 6 + number).tolist()
        made.append(Text(str(number), str(number), tokens, [*tokens[1:4], END]))
    return made


def plain(model: torch.nn.Module, read: list[int], reference: list[int]) -> float:
    return model(input_ids=torch.tensor([read]), labels=torch.tensor([reference])).loss.item() * len(reference)


@pytest.mark.parametrize("batch", [1, 3, 8])
def test_d16_the_loss_is_that_of_the_reference_behind_prefix_trigger_and_whole_article(batch):
    attacked, triggers = victim(batch), [[11, 12], [], [13], [14, 15, 16], []]
    found = attacked.losses(triggers, texts())
    for text, trigger, losses in zip(texts(), triggers, found, strict=True):
        read = [7, 8, *trigger, *text.tokens, END]
        assert len(losses) == len(text.reference)
        assert losses.sum().item() == pytest.approx(plain(attacked.model, read, text.reference), rel=1e-5)
    assert attacked.count.forward_sequences == 5


def test_variants_of_an_article_keep_its_reference():
    attacked, text = victim(), texts()[3]
    variants = random_flips(text, USABLE, FlipAttack(flips=2, control_draws=4), 3)
    scored = scored_tokens(text, writable_positions(text, FlipAttack(flips=2), 3))
    assert scored.tolist() == [True] * len(text.reference), "nobody writes into a reference: all of it counts"
    for variant, losses in zip(variants, attacked.variant_losses(text, variants, scored), strict=True):
        assert isinstance(variant, Text) and variant.reference == text.reference
        assert losses.sum().item() == pytest.approx(
            plain(attacked.model, [7, 8, *variant, END], text.reference), rel=1e-5
        )


def test_the_gradient_is_that_of_the_summed_loss_of_a_single_pair():
    attacked, triggers = victim(), [[11, 12], [], [13], [14, 15, 16], []]
    everything = [torch.ones(len(text.reference), dtype=torch.bool) for text in texts()]
    for text, trigger, gradient in zip(
        texts(), triggers, attacked.gradients(triggers, texts(), everything), strict=True
    ):
        read = torch.tensor([[7, 8, *trigger, *text.tokens, END]])
        embedded = attacked.model.get_input_embeddings()(read).detach().requires_grad_()
        loss = attacked.model(inputs_embeds=embedded, labels=torch.tensor([text.reference])).loss
        (loss * len(text.reference)).backward()
        assert embedded.grad is not None and gradient.abs().max() > 0
        torch.testing.assert_close(gradient, embedded.grad[0, 2:-1], rtol=1e-3, atol=1e-5)
    assert attacked.count.backward_sequences == 5


def test_a_search_raises_the_loss_of_a_model_that_copies_and_beats_random_flips():
    """The planted weakness: whoever replaces what is copied breaks the reference."""
    attack = FlipAttack(flips=2, candidates=12, control_draws=4)
    risen, random = 0.0, 0.0
    for text in texts():
        attacked = victim()
        found = FlipSearch(attacked, text, USABLE, attack, 3).run()
        clean, flipped = (losses.sum().item() for losses in attacked.losses([[], []], [text, found.tokens]))
        assert flipped == pytest.approx(found.loss_sums[-1], rel=1e-4) and flipped >= clean
        drawn = attacked.losses([[]] * 4, random_flips(text, USABLE, attack, 3))
        risen, random = risen + flipped - clean, random + float(np.mean([one.sum() for one in drawn])) - clean
    assert risen > max(0.0, random) + 0.1


def test_a_trigger_search_continues_from_its_state():
    attack = TriggerAttack(trigger_tokens=2, restarts=1, iterations=4, candidates=6, batch_documents=3)
    whole = TriggerSearch(victim(), texts(), USABLE, attack, 5)
    while not whole.finished:
        whole.step()
    first = TriggerSearch(victim(), texts(), USABLE, attack, 5)
    first.step()
    again = TriggerSearch(victim(), texts(), USABLE, attack, 5, state=first.state)
    while not again.finished:
        again.step()
    assert again.state == whole.state
