"""Where constrained weights start: positive part and absolute."""

from typing import Any

import pytest
import torch

from storage.errors import BadInput
from tasks.monotonic import constraint
from tasks.monotonic.arms import shift
from tasks.monotonic.constraint import signs_of
from tests.tasks.monotonic.architectures import LAYERS, begun, network, probe
from tests.tasks.tiny import bytes_are_equal

EVERY = pytest.mark.parametrize(("architecture", "variant"), LAYERS)


@pytest.mark.parametrize("signs", ["non-negative", "random"])
@EVERY
def test_positive_part_and_absolute_of_every_architecture(architecture, variant, signs):
    for start in ("positive-part", "absolute"):
        model, base = network(architecture), network(architecture)
        allowed = begun(model, variant, signs, start, by="projection")
        for name in LAYERS[architecture, variant]:
            weight, sign = base.get_submodule(name).weight.detach(), allowed.layers[name]
            expected = sign * ((sign * weight).clamp(min=0) if start == "positive-part" else weight.abs())
            assert torch.equal(model.get_submodule(name).weight, expected)
        before, named = base.state_dict(), {f"{name}.weight" for name in LAYERS[architecture, variant]}
        changed = {n for n, tensor in model.state_dict().items() if not bytes_are_equal(tensor, before[n])}
        assert changed == named


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


def test_a_scale_that_is_not_above_0_is_refused():
    model = with_norms("gpt_neox")
    with torch.no_grad():
        model.gpt_neox.layers[1].post_attention_layernorm.weight[3] = -0.1
    with pytest.raises(BadInput, match="scales above 0"):
        shift(model, "mlp_both")
