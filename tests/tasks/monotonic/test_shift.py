"""Under LayerNorm non-negative weights restrict no function: a shift makes them so, and the network undoes it."""

from typing import Any

import pytest
import torch

from storage.errors import BadInput
from tasks.monotonic import constraint
from tasks.monotonic.arms import shift
from tasks.monotonic.constraint import signs_of
from tests.tasks.monotonic.architectures import network, probe


def with_norms(architecture: str) -> Any:
    """A network whose LayerNorms have scales and biases of their own, as a trained one's."""
    model = network(architecture)
    chance = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.uniform_(0.5, 2.0, generator=chance)
                module.bias.normal_(generator=chance)
    return model


@pytest.mark.parametrize("architecture", ["gpt_neox", "gpt2"])
@pytest.mark.parametrize("variant", ["mlp_in", "mlp_both"])
def test_a_shifted_network_has_non_negative_weights_and_is_the_function_that_it_was(architecture, variant):
    model = with_norms(architecture)
    before, weights = (
        probe(model),
        [layer.weight.clone() for layer in constraint.constrained_modules(model, variant).values()],
    )
    assert min(weight.min() for weight in weights) < 0
    shift(model, variant)
    assert constraint.verify(model, variant, signs_of(model, variant, "non-negative")).min_weight >= 0
    assert torch.allclose(probe(model), before, atol=1e-4)
    assert not torch.equal(next(iter(constraint.constrained_modules(model, variant).values())).weight, weights[0])


def test_a_network_without_layer_norm_is_refused():
    with pytest.raises(BadInput, match="needs a network with LayerNorm"):
        shift(network("llama"), "mlp_both")


def test_a_variant_that_constrains_attention_is_refused():
    with pytest.raises(BadInput, match="mlp_in and mlp_both"):
        shift(with_norms("gpt_neox"), "mlp_in_attn_out")


def test_a_scale_that_is_not_above_0_is_refused():
    model = with_norms("gpt_neox")
    with torch.no_grad():
        model.gpt_neox.layers[1].post_attention_layernorm.weight[3] = -0.1
    with pytest.raises(BadInput, match="scales above 0"):
        shift(model, "mlp_both")
