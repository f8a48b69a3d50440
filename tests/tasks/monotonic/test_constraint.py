"""Exactly the named layers, and a verification that reads all of them."""

import pytest
import torch
from torch import nn
from transformers import OPTConfig, OPTForCausalLM

from storage.errors import BadInput, CheckFailed
from tasks.language import model as language
from tasks.monotonic import constraint, keep
from tasks.monotonic.constraint import signs_of
from tests.tasks.monotonic.architectures import LAYERS, begun, network, probe
from tests.tasks.tiny import bytes_are_equal, save_model, tiny_model

MLP_IN = {f"gpt_neox.layers.{i}.mlp.dense_h_to_4h" for i in range(2)}
MLP_BOTH = MLP_IN | {f"gpt_neox.layers.{i}.mlp.dense_4h_to_h" for i in range(2)}
EVERY = pytest.mark.parametrize(("architecture", "variant"), LAYERS)


# --------------------------------------------------------------------------------------- which layers


@EVERY
def test_a_variant_names_its_layers_and_no_others(architecture, variant):
    assert set(constraint.constrained_modules(network(architecture), variant)) == LAYERS[architecture, variant]


def test_a_linear_layer_that_is_only_called_alike_is_not_matched():
    class Other(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense_h_to_4h, self.mlp = nn.Linear(2, 2), nn.Linear(2, 2)

    model = tiny_model()
    model.other = Other()
    assert set(constraint.constrained_modules(model, "mlp_both")) == MLP_BOTH


@pytest.mark.parametrize("variant", ["mlp_in", "gated_all"])
def test_an_unknown_architecture_is_bad_input_that_names_the_known_ones(variant):
    shape = {"hidden_size": 16, "ffn_dim": 32, "word_embed_proj_dim": 16, "num_hidden_layers": 1}
    model = OPTForCausalLM(OPTConfig(vocab_size=61, num_attention_heads=2, max_position_embeddings=16, **shape))
    known = "gpt_neox, gpt2, llama, qwen2, qwen3, t5"
    with pytest.raises(BadInput, match=rf"{variant} matches no layer of OPTForCausalLM: known .* {known}"):
        constraint.constrained_modules(model, variant)


@pytest.mark.parametrize(
    ("architecture", "variant", "valid"),
    [
        ("gpt_neox", "gated_updown", "mlp_in, mlp_both"),
        ("gpt2", "gated_all", "mlp_in, mlp_both"),
        ("llama", "mlp_both", "gated_updown, gated_all"),
        ("qwen2", "mlp_in", "gated_updown, gated_all"),
        ("qwen3", "mlp_in", "gated_updown, gated_all"),
    ],
)
def test_a_variant_of_another_architecture_is_bad_input_that_names_the_valid_ones(architecture, variant, valid):
    model = network(architecture)
    message = (
        rf"{variant} does not exist in {type(model).__name__} \(architecture {architecture}\), which has {valid}: set"
    )
    with pytest.raises(BadInput, match=message):
        constraint.constrained_modules(model, variant)


@pytest.mark.parametrize("called", ["Optimized", "as before"])
@EVERY
def test_a_block_whose_sublayer_is_of_another_class_is_not_passed_over(architecture, variant, called):
    """A replaced block would otherwise stay unconstrained and unverified, and nobody would know."""
    model = network(architecture)
    block = model.get_submodule(sorted(LAYERS[architecture, variant])[-1].rsplit(".", 2)[0])
    name = type(block.mlp).__name__ if called == "as before" else called
    block.mlp.__class__ = type(name, (type(block.mlp),), {})
    with pytest.raises(CheckFailed, match=r"in each of its transformer blocks: measured 1, required 2"):
        constraint.constrained_modules(model, variant)


# ------------------------------------------------------------------------------- every architecture, to the disk


@pytest.mark.parametrize("by", ["projection", "softplus"])
@EVERY
def test_every_architecture_from_its_start_through_a_step_to_the_disk(architecture, variant, by, tmp_path):
    from tests.tasks.monotonic.test_keep import schedule_of

    model, layers = network(architecture), LAYERS[architecture, variant]
    untouched = {name: p.detach().clone() for name, p in model.named_parameters()}
    allowed = begun(model, variant, signs="random", by=by)
    for name, parameter in model.named_parameters():
        if name.split(".parametrizations")[0].removesuffix(".weight") not in layers:
            assert bytes_are_equal(parameter.detach(), untouched[name]), name
    start = constraint.verify(model, variant, allowed)
    assert start.layers == sorted(layers)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied == (architecture in ("gpt2", "llama", "qwen2"))

    before = {name: model.get_submodule(name).weight.detach().clone() for name in layers}
    optimizer = keep.optimizer(model, variant, allowed, by, schedule_of(1, 1e-2, 0.1))
    language.block_losses(model, torch.arange(32).view(4, 8)).mean().backward()
    optimizer.step()
    for name, weight in before.items():
        assert (model.get_submodule(name).weight != weight).float().mean() > 0.9, "every weight has a gradient"

    stepped, expected = constraint.verify(model, variant, allowed), probe(model)
    keep.bake(model, variant)
    loaded = language.load(save_model(tmp_path / "model", model))
    assert constraint.verify(loaded, variant, allowed) == stepped
    assert torch.equal(probe(loaded), expected)
    assert (loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight) == tied
    assert not any("parametrizations" in name or "signs" in name for name in loaded.state_dict())


# -------------------------------------------------------------------------------------------- verification


@pytest.mark.parametrize(
    ("architecture", "variant", "layer"), [(*case, layer) for case in LAYERS for layer in sorted(LAYERS[case])]
)
def test_a_wrong_sign_in_any_single_layer_of_any_architecture_is_found(architecture, variant, layer):
    model = network(architecture)
    allowed = begun(model, variant, signs="own", start="positive-part", by="projection")
    constraint.verify(model, variant, allowed)
    weight = model.get_submodule(layer).weight
    with torch.no_grad():
        weight[7, 3] = -1e-12 * allowed.layers[layer][7, 3]
    with pytest.raises(CheckFailed, match=rf"{layer} .*\(own\): measured 9.99\d*e-13|{layer} .*measured 1e-12"):
        constraint.verify(model, variant, allowed)


@pytest.mark.parametrize("layer", sorted(MLP_BOTH))
@pytest.mark.parametrize("value", [-1e-12, float("nan"), float("inf")])
def test_one_wrong_weight_in_any_named_layer_is_found_and_named(layer, value):
    model = tiny_model()
    allowed = begun(model, "mlp_both", by="projection")
    with torch.no_grad():
        model.get_submodule(layer).weight[3, 5] = value
    with pytest.raises(CheckFailed, match=layer):
        constraint.verify(model, "mlp_both", allowed)


def test_a_weight_that_was_to_be_off_and_is_not_is_found():
    model = tiny_model()
    allowed = begun(model, "mlp_both", signs="off", start="positive-part", by="projection")
    found = constraint.verify(model, "mlp_both", allowed)
    assert found.share_of_zeros == 1.0
    with torch.no_grad():
        model.gpt_neox.layers[1].mlp.dense_4h_to_h.weight[3, 5] = 1e-9
    with pytest.raises(CheckFailed, match=r"layers\.1\.mlp\.dense_4h_to_h"):
        constraint.verify(model, "mlp_both", allowed)


@pytest.mark.parametrize("variant", ["mlp_in", "mlp_both"])
def test_verification_counts_what_it_checked(variant):
    model, layers = tiny_model(), {"mlp_in": MLP_IN, "mlp_both": MLP_BOTH}[variant]
    allowed = begun(model, variant, start="positive-part", by="projection")
    weights = torch.cat([model.get_submodule(name).weight.detach().flatten() for name in layers])
    assert constraint.verify(model, variant, allowed).as_json() == {
        "layers": sorted(layers),
        "weights_checked": len(layers) * 16 * 32,
        "min_weight": 0.0,
        "max_weight": weights.max().item(),
        "share_of_zeros": (weights == 0).float().mean().item(),
    }


def test_a_model_that_was_never_constrained_fails_verification():
    model = tiny_model()
    with pytest.raises(CheckFailed, match=r"of its allowed sign \(non-negative\)"):
        constraint.verify(model, "mlp_in", signs_of(model, "mlp_in", "non-negative"))


def test_a_verification_that_would_read_nothing_fails(monkeypatch):
    model = tiny_model()
    allowed = begun(model, "mlp_in", by="projection")
    model.config.num_hidden_layers = 0
    model.gpt_neox.layers = nn.ModuleList()
    monkeypatch.setattr(constraint, "_architecture", lambda *_: "gpt_neox")  # which finds no block to know it by
    with pytest.raises(CheckFailed, match="measured 0, required 1 at least"):
        constraint.verify(model, "mlp_in", allowed)


def test_signs_of_another_variant_are_refused():
    model = tiny_model()
    with pytest.raises(BadInput, match="made for 2 layers and the model has 4"):
        constraint.verify(model, "mlp_both", signs_of(model, "mlp_in", "non-negative"))
