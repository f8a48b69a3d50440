"""Order on text: what outputs do when an input that text gives rises."""

import pytest
import torch

from tasks.monotonic.order import order_on_text, seen_inputs
from tasks.monotonic.sublayer import feed_forward_sublayers
from tests.tasks.monotonic.test_certificate import neox, non_negative, with_biases

TEXTS = [[0, 5, 9, 3, 7, 7, 2], [0, 60, 4], [0, 8, 8, 1, 33, 12, 14, 2, 50, 6]]


def on_these_texts(model):
    sublayers = feed_forward_sublayers(model, "mlp_both")
    return order_on_text(sublayers, seen_inputs(model, sublayers, TEXTS, per_text=3, batch=2))


@pytest.mark.parametrize("activation", ["relu", "monotone-parts"])
def test_a_monotone_sublayer_keeps_every_order_and_a_free_one_about_half(activation):
    kept, free = on_these_texts(non_negative(neox(activation))), on_these_texts(with_biases(neox(activation)))
    assert kept.inputs == free.inputs == 9 and (kept.share, kept.share_of_size) == (0.0, 0.0) and kept.lowest >= 0
    assert 0.3 < free.share < 0.7 and 0.3 < free.share_of_size < 0.7 and free.lowest < 0


def test_shares_are_those_of_all_changes():
    model = with_biases(neox("gelu"))
    sublayers = feed_forward_sublayers(model, "mlp_both")
    seen = seen_inputs(model, sublayers, TEXTS, per_text=3, batch=2)
    changes = []
    for sublayer in sublayers:
        x = seen[sublayer.name]
        larger = torch.maximum(x, torch.cat([x[1:], x[:1]]))
        with torch.no_grad():
            changes.append(sublayer.module(larger) - sublayer.module(x))
    found, numbers = order_on_text(sublayers, seen), torch.stack(changes)
    assert found.changes == numbers.numel()
    assert found.share == pytest.approx((numbers < 0).double().mean().item(), abs=2 / numbers.numel())
    assert found.share_of_size == pytest.approx((-numbers.clamp_max(0).sum() / numbers.abs().sum()).item(), rel=1e-4)
    assert found.lowest == pytest.approx(numbers.min().item(), rel=1e-3)


def test_a_sublayer_that_is_switched_off_has_no_negative_number():
    model = neox("gelu")
    with torch.no_grad():
        for sublayer in feed_forward_sublayers(model, "mlp_both"):
            for layer in sublayer.layers.values():
                layer.weight.zero_()
    assert on_these_texts(with_biases(model)).share == 0.0


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
