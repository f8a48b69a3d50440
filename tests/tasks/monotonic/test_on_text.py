"""Order on text: exact Jacobians at the inputs that text gives, and what outputs do when such an input rises."""

import pytest
import torch

from tasks.monotonic import on_text
from tasks.monotonic.on_text import jacobian_columns, order_on_text, seen_inputs
from tasks.monotonic.sublayer import feed_forward_sublayers
from tests.tasks.monotonic.architectures import network
from tests.tasks.monotonic.test_certificate import FULL, neox, non_negative, with_biases

TEXTS = [[0, 5, 9, 3, 7, 7, 2], [0, 60, 4], [0, 8, 8, 1, 33, 12, 14, 2, 50, 6]]


def on_these_texts(model):
    sublayers = feed_forward_sublayers(model, "mlp_both")
    return order_on_text(sublayers, seen_inputs(model, sublayers, TEXTS, per_text=3, batch=2))


@pytest.mark.parametrize("architecture", FULL)
def test_columns_are_those_of_the_jacobian(architecture, monkeypatch):
    monkeypatch.setattr(on_text, "HIDDEN_VALUES", 2 * 16 * 32)  # inputs two by two
    model = with_biases(network(architecture))
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    for sublayer in feed_forward_sublayers(model, FULL[architecture]):
        found = torch.cat(list(jacobian_columns(sublayer, x)), dim=1)
        expected = torch.stack([torch.autograd.functional.jacobian(sublayer.module, one) for one in x])
        assert torch.allclose(found, expected.permute(2, 0, 1), rtol=1e-4, atol=1e-7)


def test_of_a_wide_sublayer_some_columns_are_taken_whatever_is_held_at_once(monkeypatch):
    monkeypatch.setattr(on_text, "COLUMNS", 4)
    sublayer = feed_forward_sublayers(neox("gelu"), "mlp_both")[0]
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    together = torch.cat(list(jacobian_columns(sublayer, x)), dim=1)
    assert together.shape == (4, 5, 16)
    monkeypatch.setattr(on_text, "HIDDEN_VALUES", 1)
    one_by_one = list(jacobian_columns(sublayer, x))
    assert len(one_by_one) == 5
    assert torch.allclose(torch.cat(one_by_one, dim=1), together, rtol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "monotone-parts"])
def test_a_monotone_sublayer_keeps_every_order_and_a_free_one_about_half(activation):
    kept, free = on_these_texts(non_negative(neox(activation))), on_these_texts(with_biases(neox(activation)))
    assert kept.inputs == free.inputs == 9
    for found in (kept.jacobian, kept.rises, *(one.jacobian for one in kept.sublayers)):
        assert (found.share, found.share_of_size) == (0.0, 0.0) and found.lowest >= 0
    for found in (free.jacobian, free.rises):
        assert 0.3 < found.share < 0.7 and 0.3 < found.share_of_size < 0.7 and found.lowest < 0


def test_shares_are_those_of_all_entries_and_of_all_changes():
    model = with_biases(neox("gelu"))
    sublayers = feed_forward_sublayers(model, "mlp_both")
    seen = seen_inputs(model, sublayers, TEXTS, per_text=3, batch=2)
    entries, changes = [], []
    for sublayer in sublayers:
        x = seen[sublayer.name]
        larger = torch.maximum(x, torch.cat([x[1:], x[:1]]))
        with torch.no_grad():
            changes.append(sublayer.module(larger) - sublayer.module(x))
        entries.append(torch.stack([torch.autograd.functional.jacobian(sublayer.module, one) for one in x]))
    found = order_on_text(sublayers, seen)
    for numbers, result in ((torch.stack(entries), found.jacobian), (torch.stack(changes), found.rises)):
        assert result.numbers == numbers.numel()
        assert result.share == pytest.approx((numbers < 0).double().mean().item(), abs=2 / numbers.numel())
        assert result.share_of_size == pytest.approx(
            (-numbers.clamp_max(0).sum() / numbers.abs().sum()).item(), rel=1e-4
        )
        assert result.lowest == pytest.approx(numbers.min().item(), rel=1e-3)


def test_a_sublayer_that_is_switched_off_has_no_negative_number():
    model = neox("gelu")
    with torch.no_grad():
        for sublayer in feed_forward_sublayers(model, "mlp_both"):
            for layer in sublayer.layers.values():
                layer.weight.zero_()
    found = on_these_texts(with_biases(model))
    assert found.jacobian.share == found.jacobian.share_of_size == found.rises.share == 0.0


@pytest.mark.parametrize("batch", [1, 2, 10])
def test_inputs_are_those_of_each_text_by_itself(batch):
    """Every place of the text, as it is read alone, without padding."""
    model = with_biases(neox("gelu"))
    sublayers = feed_forward_sublayers(model, "mlp_both")
    seen = seen_inputs(model, sublayers, TEXTS, per_text=100, batch=batch)
    for sublayer in sublayers:
        alone = []
        hook = sublayer.module.register_forward_pre_hook(lambda _, given, alone=alone: alone.append(given[0][0]))
        with torch.no_grad():
            for ids in TEXTS:
                model(input_ids=torch.tensor([ids]))
        hook.remove()
        assert torch.allclose(seen[sublayer.name], torch.cat(alone), rtol=1e-4, atol=1e-6)
    assert not any(sublayer.module._forward_pre_hooks for sublayer in sublayers)
