"""Whether constrained sublayers do anything: against a replacement written out by hand, and on planted outputs."""

import math

import pytest
import torch
from torch import nn

from tasks.language.model import block_losses
from tasks.monotonic.arms import measure_liveness
from tasks.monotonic.constraint import constrained_sublayers
from tests.tasks.monotonic.architectures import LAYERS, begun, network
from tests.tasks.tiny import tiny_model

TOKENS_BL = torch.randint(0, 61, (12, 12), generator=torch.Generator().manual_seed(2))


@torch.no_grad()
def loss(model: nn.Module, batch: int = 5) -> float:
    return sum(block_losses(model, rows).double().sum().item() for rows in TOKENS_BL.split(batch)) / len(TOKENS_BL)


class Constant(nn.Module):
    """Says the same whatever it is given."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value.expand(*x.shape[:-1], -1)


@torch.no_grad()
def outputs_of(model: nn.Module, modules: dict[str, nn.Module]) -> dict[str, torch.Tensor]:
    """Name -> outputs over all tokens, [T, D]."""
    found: dict[str, torch.Tensor] = {}
    handles = [
        module.register_forward_hook(lambda _m, _i, out, name=name: found.update({name: out.flatten(0, 1)}))
        for name, module in modules.items()
    ]
    model(input_ids=TOKENS_BL[:, :-1])
    for handle in handles:
        handle.remove()
    return found


@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_rise_and_rank_are_those_of_the_outputs_themselves(architecture, variant):
    model = network(architecture)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)  # an untrained model's sublayers say little
    found = measure_liveness(model, variant, loss)
    sublayers = constrained_sublayers(model, variant)
    outputs = outputs_of(model, sublayers)
    assert found.loss_nats_per_token == loss(model)

    for name in sublayers:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, Constant(outputs[name].mean(0)))
    assert found.loss_with_means_nats_per_token == pytest.approx(loss(model), rel=1e-5)
    assert found.rise_nats_per_token == found.loss_with_means_nats_per_token - found.loss_nats_per_token
    assert abs(found.rise_nats_per_token) > 1e-4

    for name, output in outputs.items():
        centred = output.double() - output.double().mean(0)
        if architecture in ("gpt_neox", "gpt2"):  # their LayerNorms take the mean over coordinates away
            centred = centred - centred.mean(1, keepdim=True)
        shares = torch.linalg.svdvals(centred) ** 2
        shares = shares[shares > 1e-12 * shares.sum()] / shares.sum()
        assert found.effective_rank[name] == pytest.approx(math.exp(-(shares * shares.log()).sum()), rel=1e-3)


def test_after_the_measurement_the_model_is_as_before():
    model = tiny_model()
    before = loss(model)
    measure_liveness(model, "mlp_both", loss)
    assert loss(model) == before
    assert not any(module._forward_hooks for module in model.modules())


def test_a_sublayer_that_is_off_costs_nothing_and_has_rank_one():
    model = tiny_model()
    begun(model, "mlp_both", "off", "positive-part", "projection")
    with torch.no_grad():
        for block in model.gpt_neox.layers:
            block.mlp.dense_4h_to_h.bias.normal_(generator=torch.Generator().manual_seed(0))
    found = measure_liveness(model, "mlp_both", loss)
    assert abs(found.rise_nats_per_token) < 1e-6
    assert set(found.effective_rank.values()) == {1.0}
    with torch.no_grad():
        for block in model.gpt_neox.layers:
            block.mlp.dense_4h_to_h.bias.zero_()
    assert set(measure_liveness(model, "mlp_both", loss).effective_rank.values()) == {1.0}, "0 everywhere, and no NaN"


@pytest.mark.parametrize("directions", [1, 3, 8])
def test_the_rank_counts_the_directions_that_an_output_takes_about_its_mean(directions):
    model = tiny_model(layers=1)
    mlp = model.gpt_neox.layers[0].mlp
    chance = torch.Generator().manual_seed(0)

    def planted(_module: nn.Module, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        which = torch.randint(0, directions, output.shape[:2], generator=chance)
        signs = torch.randint(0, 2, (*output.shape[:2], 1), generator=chance) * 2.0 - 1
        return 100.0 + signs * nn.functional.one_hot(which, output.shape[-1])

    mlp.register_forward_hook(planted)
    (rank,) = measure_liveness(model, "mlp_both", loss).effective_rank.values()
    assert rank == pytest.approx(directions, rel=0.1)
