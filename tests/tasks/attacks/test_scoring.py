"""The loss of attacked texts, and the gradient that guides the search: by hand, alone, and in every batch."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from storage.errors import CheckFailed
from tasks.attacks import scoring
from tasks.attacks.scoring import Count, Victim
from tasks.language.model import load, token_losses
from tests.tasks.attacks.planted import POISON, Gullible, planted, texts
from tests.tasks.monotonic.architectures import network
from tests.tasks.tiny import save_model, tiny_model


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


ARCHITECTURES = pytest.mark.parametrize("architecture", ["gpt_neox", "gpt2", "llama", "qwen2", "qwen3"])
TEXT = [5, 9, 31, 2, 60, 17, 8, 44, 3, 12, 7, 29]


def scored_of(text: list[int]) -> torch.Tensor:
    return torch.tensor([place % 3 != 1 for place in range(len(text))])


def variants(count: int = 40) -> list[list[int]]:
    """Of TEXT, each with another token at one or two of the places that are not scored; and TEXT itself."""
    chance = np.random.default_rng(5)
    made = [list(TEXT)]
    for number in range(count):
        made.append(list(TEXT))
        for place in chance.choice([1, 4, 7, 10], size=1 + number % 2, replace=False):
            made[-1][place] = int(chance.integers(1, 61))
    return made


@ARCHITECTURES
def test_only_scored_tokens_are_answered_for_and_the_losses_are_those_of_a_plain_pass(architecture):
    victim, (prefixes, own) = Victim(network(architecture).double(), 0, 4), uneven()
    prefixes, own = [prefix[:3] for prefix in prefixes], [text[:12] for text in own]
    scored = [scored_of(text) for text in own]
    for prefix, text, counted, losses in zip(prefixes, own, scored, victim.losses(prefixes, own, scored), strict=True):
        plain = torch.tensor(alone(victim, prefix, text))[counted]
        assert losses.tolist() == pytest.approx(plain.tolist(), rel=1e-6)
    assert victim.head is not None, "the network is not run whole"


@ARCHITECTURES
def test_what_variants_share_is_read_once_and_their_losses_are_those_of_a_plain_pass(architecture, monkeypatch):
    victim, read = Victim(network(architecture).double(), 0, 64), []
    states = Victim._states

    def counted(self, cache=None, **given):
        read.append(given["input_ids"].numel())
        return states(self, cache, **given)

    monkeypatch.setattr(Victim, "_states", counted)
    found = victim.variant_losses(TEXT, variants(), scored_of(TEXT))
    for variant, losses in zip(variants(), found, strict=True):
        plain = torch.tensor(alone(victim, [], variant))[scored_of(TEXT)]
        assert losses.tolist() == pytest.approx(plain.tolist(), rel=1e-6)
    assert victim.count == Count(41, 0), "a variant is a forward sequence, however little of it is read"
    assert sum(read) < 0.75 * 41 * len(TEXT)


def test_variants_of_a_scored_token_are_judged_by_their_own():
    victim, everything = Victim(tiny_model().double(), 0, 64), torch.ones(len(TEXT), dtype=torch.bool)
    for variant, losses in zip(variants(), victim.variant_losses(TEXT, variants(), everything), strict=True):
        assert losses.tolist() == pytest.approx(alone(victim, [], variant), rel=1e-6)


def test_variants_that_differ_behind_the_last_scored_token_cost_what_the_text_does():
    scored_L = torch.arange(len(TEXT)) < 6
    for count in (1, 30):
        late = [[*TEXT[:9], token, *TEXT[10:]] for token in range(1, 1 + count)]
        for losses in (victim := Victim(tiny_model(), 0, 64)).variant_losses(TEXT, late, scored_L):
            assert losses.tolist() == pytest.approx(alone(victim, [], TEXT)[:6], rel=1e-5)


def test_few_variants_and_those_that_differ_early_are_read_whole():
    for few in (variants(2), [[7, *TEXT[1:]], [8, *TEXT[1:]]] * 20):
        victim = Victim(tiny_model(), 0, 64)
        victim.model.base_model.register_forward_pre_hook(
            lambda _, __, given: pytest.fail("a cache") if given["use_cache"] else None, with_kwargs=True
        )
        assert len(victim.variant_losses(TEXT, few, scored_of(TEXT))) == len(few) == victim.count.forward_sequences


def test_a_network_whose_logits_are_more_than_a_product_is_run_whole():
    model = network("llama")
    model.config.model_type = "granite"  # which divides its logits
    plain = model.forward
    model.forward = lambda *read, **given: SimpleNamespace(logits=plain(*read, **given).logits / 8)
    victim = Victim(model, 0, 4)
    assert victim.head is None
    for variant, losses in zip(variants(), victim.variant_losses(TEXT, variants(), scored_of(TEXT)), strict=True):
        plain_losses = torch.tensor(alone(victim, [], variant))[scored_of(TEXT)]
        assert losses.tolist() == pytest.approx(plain_losses.tolist(), rel=1e-5)


@ARCHITECTURES
def test_variants_under_bf16_are_near_fp32(architecture):
    exact, rough = (Victim(network(architecture), 0, 64, precision) for precision in ("fp32", "bf16"))
    answers = [victim.variant_losses(TEXT, variants(), scored_of(TEXT)) for victim in (exact, rough)]
    for fp32, bf16 in zip(*answers, strict=True):
        assert bf16.tolist() == pytest.approx(fp32.tolist(), rel=0.03)
    assert any(not torch.equal(fp32, bf16) for fp32, bf16 in zip(*answers, strict=True))


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED")]
)
def test_variants_that_do_not_fit_are_halved_and_nothing_is_lost(monkeypatch, error):
    whole, victim = Victim(tiny_model(), 0, 64), Victim(tiny_model(), 0, 64)
    expected, states = whole.variant_losses(TEXT, variants(), scored_of(TEXT)), Victim._states

    def small(self, cache=None, **given):
        if given["input_ids"].shape[0] > 2:
            raise error
        return states(self, cache, **given)

    monkeypatch.setattr(Victim, "_states", small)
    found = victim.variant_losses(TEXT, variants(), scored_of(TEXT))
    assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True))
    assert victim.count == whole.count == Count(41, 0)


def test_logits_are_computed_of_scored_tokens_only_and_of_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(scoring, "ROWS_OF_LOGITS", 4)
    victim, rows, linear = tiny_victim(), [], torch.nn.functional.linear

    def counted(input, weight, bias=None):
        rows.extend([len(input)] if weight is victim.head.weight else [])
        return linear(input, weight, bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    scored = scored_of(TEXT)
    victim.losses([[3, 4, 5]] * 2, [TEXT] * 2, [scored] * 2)
    assert sum(rows) == 2 * int(scored.sum()) and max(rows) <= 4


def test_a_loss_that_is_no_number_is_an_error_and_never_the_best_candidate():
    victim = tiny_victim()
    victim.model.get_output_embeddings().weight.data[7] = float("nan")
    with pytest.raises(CheckFailed, match="finite"):
        victim.losses([[]], [[5, 6, 7]])


def test_the_model_keeps_no_cache_for_generation(tmp_path):
    assert load(save_model(tmp_path / "model", tiny_model())).config.use_cache is False


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


class Small(Gullible):
    """A GPU whose memory holds so many tokens and no more."""

    tokens = 40

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, input_ids=None, inputs_embeds=None):
        shape = (input_ids if inputs_embeds is None else inputs_embeds).shape[:2]
        if shape.numel() > self.tokens:
            raise torch.OutOfMemoryError("CUDA out of memory")
        self.shapes.append(tuple(shape))
        return super().forward(input_ids, inputs_embeds)


def test_a_batch_that_does_not_fit_is_halved_and_nothing_is_lost():
    victim, own = Victim(Small(), 0, 64), texts(9, length=12)
    whole, everything = planted(batch=64), [torch.ones(12, dtype=torch.bool)] * 9
    for found, expected in (
        (victim.losses([[7]] * 9, own), whole.losses([[7]] * 9, own)),
        (victim.gradients([[7]] * 9, own, everything), whole.gradients([[7]] * 9, own, everything)),
    ):
        assert all(torch.allclose(a, b) for a, b in zip(found, expected, strict=True)) and len(found) == 9
    assert victim.count == whole.count == Count(18, 9), "what is tried twice is counted once"
    first = list(victim.model.shapes)
    victim.losses([[7]] * 9, own)
    assert victim.model.shapes[len(first) :] == first[: len(first) // 2], "cut as the first time: rounding is the same"


def test_one_text_that_does_not_fit_is_an_error():
    with pytest.raises(torch.OutOfMemoryError):
        Victim(Small(), 0, 4).losses([[]], [list(range(1, 60))])


def test_batches_are_of_like_lengths_and_answers_in_the_order_of_the_questions():
    model = Small()
    own = [[5] * size for size in (3, 9, 3, 9, 3, 9)]
    found = Victim(model, 0, 3).losses([[]] * 6, own)
    assert sorted(shape[1] for shape in model.shapes) == [3, 9] and [len(losses) for losses in found] == [3, 9] * 3


def test_a_backward_counts_as_two_forwards():
    assert Count(forward_sequences=5, backward_sequences=3).as_forwards == 11


def test_bf16_is_near_fp32_and_leaves_the_next_passes_as_they_are():
    exact, rough = (Victim(tiny_model(length=40), 0, 4, precision) for precision in ("fp32", "bf16"))
    (prefixes, own), worst = uneven(), 0.0
    for a, b in zip(exact.losses(prefixes, own), rough.losses(prefixes, own), strict=True):
        assert a.tolist() == pytest.approx(b.tolist(), rel=0.03)
        worst = max(worst, float((a - b).abs().max()))
    assert worst > 0, "bf16 is not fp32 by another name"
    everything = [torch.ones(len(text), dtype=torch.bool) for text in own]
    for a, b in zip(
        exact.gradients(prefixes, own, everything), rough.gradients(prefixes, own, everything), strict=True
    ):
        assert torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.98
    assert not torch.backends.cuda.matmul.allow_tf32 and not torch.is_autocast_enabled("cpu")
