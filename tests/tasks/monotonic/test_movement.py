"""How far weights moved: exact medians on planted movements, beside the free matrices and not the embeddings."""

import pytest
import torch

from tasks.monotonic.keep import measure_movement
from tests.tasks.monotonic.architectures import LAYERS, begun, network
from tests.tasks.tiny import tiny_model

INTO = "gpt_neox.layers.{}.mlp.dense_h_to_4h"


@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_constrained_and_free_matrices_are_told_apart_and_embeddings_are_neither(architecture, variant):
    model, start = network(architecture), network(architecture)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            named = name.removesuffix(".weight") in LAYERS[architecture, variant]
            parameter.mul_(1.02 if named else 1.3)
        for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
            embedding.weight.mul_(7)
    found = measure_movement(model, variant, start)
    assert found.constrained == pytest.approx(0.02, rel=1e-3)
    assert set(found.constrained_by_layer) == LAYERS[architecture, variant]
    assert found.free == pytest.approx(0.3, rel=1e-3)
    assert found.share_of_zeros_left is None
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" not in name and "wte" not in name and "lm_head" not in name:
                parameter.copy_(dict(start.named_parameters())[name])
    assert measure_movement(model, variant, start).free == 0.0, "embeddings alone moved"


def test_medians_are_of_the_weights_that_did_not_start_at_zero():
    start, model = tiny_model(), tiny_model()
    begun(start, "mlp_in", start="positive-part", by="projection")
    model.load_state_dict(start.state_dict())
    name = INTO.format(0)
    weight = model.get_submodule(name).weight
    with torch.no_grad():
        zero = weight == 0
        row, column = zero.nonzero()[0]
        weight[~zero] *= torch.linspace(1, 3, int((~zero).sum()))
        weight[row, column] = 5.0
    found = measure_movement(model, "mlp_in", start)
    assert found.constrained_by_layer[name] == pytest.approx(1.0, rel=0.02)
    assert found.constrained_by_layer[INTO.format(1)] == 0.0
    zeros = sum(int((start.get_submodule(INTO.format(block)).weight == 0).sum()) for block in range(2))
    assert found.share_of_zeros_left == 1 / zeros
    assert 0 <= found.constrained < 0.1, "half of them all did not move"


def test_the_effective_weight_is_what_moves():
    model, start = tiny_model(), tiny_model()
    begun(start, "mlp_both", start="absolute", by="projection")
    begun(model, "mlp_both", start="absolute", by="softplus")
    assert measure_movement(model, "mlp_both", start).constrained < 1e-5, "V has other values, W has not"
    with torch.no_grad():
        for layer in model.gpt_neox.layers:
            layer.mlp.dense_h_to_4h.parametrizations.weight.original.add_(0.5)
    found = measure_movement(model, "mlp_both", start)
    assert found.constrained_by_layer[INTO.format(0)] == pytest.approx(0.64, abs=0.02)


def test_where_all_started_at_zero_there_is_no_median():
    model, start = tiny_model(), tiny_model()
    for each in (model, start):
        begun(each, "mlp_both", "off", "positive-part", "projection")
    found = measure_movement(model, "mlp_both", start)
    assert found.constrained is None and set(found.constrained_by_layer.values()) == {None}
    assert found.share_of_zeros_left == 0.0 and found.free == 0.0
