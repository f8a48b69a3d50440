"""Which sign each weight may have: drawn, taken over or chosen, the same every time, and kept on disk."""

import hashlib

import pytest
import torch
from safetensors.torch import load_file, save_file

from storage.errors import BadInput
from tasks.monotonic.constraint import FILE, AllowedSigns, constrained_modules, project, signs_of, verify
from tests.tasks.monotonic.architectures import LAYERS, begun, network
from tests.tasks.tiny import bytes_are_equal, tiny_model

KINDS = ["non-negative", "own", "random", "off"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_signs_are_minus_one_zero_or_one_for_each_layer_and_survive_the_disk(architecture, variant, kind, tmp_path):
    allowed = signs_of(network(architecture), variant, kind)
    assert set(allowed.layers) == LAYERS[architecture, variant]
    allowed.save(tmp_path)
    loaded = AllowedSigns.load(tmp_path)
    assert loaded.kind == kind
    for name, signs in allowed.layers.items():
        assert bytes_are_equal(loaded.layers[name], signs)
        expected = {"non-negative": {1}, "off": {0}}.get(kind, {-1, 1})
        assert set(signs.flatten().tolist()) == expected


def test_signs_that_are_all_the_same_take_no_memory(tmp_path):
    signs_of(tiny_model(), "mlp_both", "non-negative").save(tmp_path)
    assert all(signs.numel() == 1 for signs in load_file(tmp_path / FILE).values())


def test_own_signs_are_those_of_the_weights_and_keep_every_weight():
    model, layer = tiny_model(), "gpt_neox.layers.0.mlp.dense_h_to_4h"
    with torch.no_grad():
        model.get_submodule(layer).weight[0, :2] = torch.tensor([0.0, -0.0])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    allowed = begun(model, "mlp_both", signs="own", start="positive-part", by="projection")
    assert allowed.layers[layer][0, :2].tolist() == [1, 1]
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_random_signs_are_the_same_on_every_machine_and_others_for_other_seeds():
    """Written down once: another numpy or another machine must draw these."""

    def drawn(seed: int, *seeds: int) -> list[torch.Tensor]:
        allowed = signs_of(tiny_model(seed=seed), "mlp_both", "random", seeds)
        return [allowed.layers[f"gpt_neox.layers.{block}.mlp.dense_h_to_4h"] for block in range(2)]

    def share(one: torch.Tensor, other: torch.Tensor) -> float:
        return float((one == other).float().mean())

    first, second = drawn(0, 42, 0)
    assert hashlib.sha256(first.numpy().tobytes()).hexdigest()[:16] == "4c5de099d806091d"
    assert 0.4 < share(first, second) < 0.6, "each layer draws its own"
    assert 0.4 < float((first > 0).float().mean()) < 0.6
    assert share(first, drawn(7, 42, 0)[0]) == 1, "whatever the weights"
    assert all(0.4 < share(first, drawn(0, *seeds)[0]) < 0.6 for seeds in ((43, 0), (42, 1), (0, 42)))


@pytest.mark.parametrize("architecture", ["gpt_neox", "gpt2"])
def test_per_unit_signs_flip_a_unit_s_row_and_column_together(architecture):
    model = network(architecture)
    allowed = signs_of(model, "mlp_both", "per-unit")
    layers = constrained_modules(model, "mlp_both")
    transposed = architecture == "gpt2"
    for into, out_of in zip(list(layers)[::2], list(layers)[1::2], strict=True):
        w_in, w_out = (layers[name].weight.detach() for name in (into, out_of))
        s_in, s_out = (allowed.layers[name].expand(w.shape) for name, w in ((into, w_in), (out_of, w_out)))
        if transposed:
            w_in, w_out, s_in, s_out = w_in.T, w_out.T, s_in.T, s_out.T
        units = s_in[:, 0]
        assert (s_in == units[:, None]).all() and (s_out == units[None, :]).all()
        assert 0 < (units > 0).float().mean() < 1
        for unit, sign in enumerate(units.tolist()):
            kept = {
                s: (s * w_in[unit]).clamp(min=0).square().sum() + (s * w_out[:, unit]).clamp(min=0).square().sum()
                for s in (-1, 1)
            }
            assert kept[sign] >= kept[-sign], "the side that keeps more of the base model"


def test_a_sublayer_with_per_unit_signs_is_monotone_under_an_activation_that_is():
    model = tiny_model()
    begun(model, "mlp_both", signs="per-unit", start="positive-part", by="projection")
    mlp = model.gpt_neox.layers[0].mlp
    mlp.act = torch.nn.ReLU()
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(500, 16, generator=generator)
    higher = x + torch.rand(500, 16, generator=generator)
    with torch.no_grad():
        assert (mlp(higher) - mlp(x)).min() >= -1e-6
        assert (mlp(higher) - mlp(x)).max() > 1e-3
        mlp.dense_4h_to_h.weight.neg_()
        assert (mlp(higher) - mlp(x)).min() < -1e-3, "and only with these signs"


def test_projection_keeps_what_has_its_sign_bit_for_bit_and_hides_no_nan():
    weight = torch.tensor([1.5, -1.5, 1.5, -1.5, 0.0, float("nan")])
    project(weight, torch.tensor([1, 1, -1, -1, -1, 1], dtype=torch.int8))
    assert weight[:5].tolist() == [1.5, 0.0, 0.0, -1.5, 0.0] and weight[5].isnan()
    everywhere = torch.randn(4, 3)
    off = everywhere.clone()
    project(off, torch.tensor(0, dtype=torch.int8))
    assert not off.any()


def test_a_verified_model_is_of_the_signs_on_disk(tmp_path):
    model = tiny_model()
    begun(model, "mlp_both", signs="random", start="positive-part", by="projection").save(tmp_path)
    found = verify(model, "mlp_both", AllowedSigns.load(tmp_path))
    assert found.min_weight < 0 < found.max_weight and 0.4 < found.share_of_zeros < 0.6


def test_signs_that_constrain_did_not_write_are_refused(tmp_path):
    save_file({"layer": torch.ones(2, 2, dtype=torch.int8)}, tmp_path / FILE)
    with pytest.raises(BadInput, match="does not say which signs it holds: constrain did not write it"):
        AllowedSigns.load(tmp_path)
