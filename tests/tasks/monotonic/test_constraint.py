"""W = softplus(V): the exact inverse, exactly the named layers, and a verification that reads all of them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn.functional import softplus
from transformers import OPTConfig, OPTForCausalLM

from storage.errors import BadInput, CheckFailed
from tasks.language import model as language
from tasks.monotonic import constraint
from tasks.monotonic.constraint import Softplus
from tasks.robustness import study
from tasks.training.budget import Budget
from tasks.training.optimizer import adamw
from tasks.training.schedule import Schedule
from tests.tasks.monotonic.architectures import LAYERS, network
from tests.tasks.tiny import bytes_are_equal, save_model, tiny_model

MLP_IN = {f"gpt_neox.layers.{i}.mlp.dense_h_to_4h" for i in range(2)}
MLP_BOTH = MLP_IN | {f"gpt_neox.layers.{i}.mlp.dense_4h_to_h" for i in range(2)}
VARIANTS = pytest.mark.parametrize(("variant", "layers"), [("mlp_in", MLP_IN), ("mlp_both", MLP_BOTH)])


def probe(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=torch.arange(16).view(2, 8)).logits


# ------------------------------------------------------------------------------------------- the inverse


def test_softplus_of_the_inverse_is_the_absolute_weight_from_1e_8_to_100():
    w = torch.logspace(-8, 2, 2001, dtype=torch.float64).float()
    for signed in (w, -w):
        back = softplus(Softplus().right_inverse(signed))
        relative = ((back - w).abs() / w).max().item()
        # V is about log W; its own rounding is |V| * 2^-24, which becomes relative in W
        assert relative <= 2 * max(1.0, abs(math.log(1e-8))) * 2**-24


def test_the_inverse_agrees_with_double_precision():
    w = torch.logspace(-8, 2, 2001, dtype=torch.float64)
    exact = [math.log(math.expm1(a)) for a in w.tolist()]
    found = Softplus().right_inverse(w.float()).tolist()
    # W itself is rounded to fp32 first, which moves V by 2^-24 / (1 - e^-W) at most
    assert all(abs(v - e) <= 4e-7 * max(1.0, abs(e)) for v, e in zip(found, exact, strict=True))


def test_the_inverse_is_finite_where_e_to_the_weight_is_not():
    v = Softplus().right_inverse(torch.tensor([88.0, 100.0, 1e4, 1e30]))
    assert torch.equal(v, torch.tensor([88.0, 100.0, 1e4, 1e30]))


def test_a_weight_of_zero_becomes_the_smallest_weight_and_can_still_learn():
    v = Softplus().right_inverse(torch.tensor([0.0, -0.0, 1e-30])).requires_grad_()
    w = softplus(v)
    w.sum().backward()
    assert v.isfinite().all() and (v.grad > 0).all()
    assert w.tolist() == pytest.approx([constraint.SMALLEST_WEIGHT] * 3, rel=2e-6)


# --------------------------------------------------------------------------------------- which layers


@VARIANTS
def test_a_variant_constrains_its_layers_and_nothing_else(variant, layers):
    model, before = tiny_model(), tiny_model()
    assert set(constraint.constrain(model, variant)) == layers
    changed = {
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
        and not torch.equal(module.weight.detach(), before.get_submodule(name).weight.detach())
    }
    assert changed == layers
    untouched = dict(before.named_parameters())
    for name, parameter in model.named_parameters():
        if "parametrizations" not in name:
            assert torch.equal(parameter, untouched[name]), name
    assert set(constraint.free_parameters(model, variant)) == {
        name for name, _ in model.named_parameters() if "parametrizations" in name
    }


@VARIANTS
def test_the_constrained_weight_is_the_absolute_one(variant, layers):
    model, before = tiny_model(), tiny_model()
    for name, module in constraint.constrain(model, variant).items():
        assert torch.allclose(module.weight, before.get_submodule(name).weight.abs(), rtol=3e-6, atol=1e-8)


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
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    known = r"gpt_neox \(.*GPTNeoXMLP\), gpt2 \(.*GPT2MLP\), llama \(LlamaMLP\), qwen2 \(.*\), qwen3 \("
    for act in (constraint.constrain, constraint.verify):
        with pytest.raises(BadInput, match=rf"{variant} matches no layer of OPTForCausalLM: known .* {known}"):
            act(model, variant)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize(
    ("architecture", "variant", "valid"),
    [
        ("gpt_neox", "gated_updown", "mlp_in, mlp_both, mlp_in_attn_out"),
        ("gpt2", "gated_all", "mlp_in, mlp_both, mlp_in_attn_out"),
        ("llama", "mlp_both", "gated_updown, gated_all"),
        ("qwen2", "mlp_in", "gated_updown, gated_all"),
        ("qwen3", "mlp_in_attn_out", "gated_updown, gated_all"),
    ],
)
def test_a_variant_of_another_architecture_is_bad_input_that_names_the_valid_ones(architecture, variant, valid):
    model = network(architecture)
    message = (
        rf"{variant} does not exist in {type(model).__name__} \(architecture {architecture}\), which has {valid}: set"
    )
    with pytest.raises(BadInput, match=message):
        constraint.constrain(model, variant)


def test_the_configuration_knows_the_variants_of_every_architecture():
    """It refuses a variant before anything runs, and may not import torch to know."""
    assert {name: tuple(variants) for name, variants in constraint.ARCHITECTURES.items()} == study.VARIANTS


@pytest.mark.parametrize("called", ["Optimized", "as before"])
@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_a_block_whose_sublayer_is_of_another_class_is_not_passed_over(architecture, variant, called):
    """A replaced block would otherwise stay unconstrained and unverified, and nobody would know."""
    model = network(architecture)
    block = model.get_submodule(sorted(LAYERS[architecture, variant])[-1].rsplit(".", 2)[0])
    name = type(block.mlp).__name__ if called == "as before" else called
    block.mlp.__class__ = type(name, (type(block.mlp),), {})
    with pytest.raises(CheckFailed, match=r"in each of its transformer blocks: measured 1, required 2"):
        constraint.constrain(model, variant)


def test_a_model_of_two_architectures_is_refused():
    model = tiny_model()
    model.other = network("llama")
    with pytest.raises(BadInput, match="alone, but of gpt_neox and llama"):
        constraint.constrain(model, "mlp_in")


# ------------------------------------------------------------------------------- every architecture, to the disk


@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_every_architecture_from_constraining_through_a_step_to_the_disk(architecture, variant, tmp_path):
    model, layers = network(architecture), LAYERS[architecture, variant]
    constraint.constrain(model, variant)
    start = constraint.verify(model, variant)
    assert start.layers == sorted(layers) and start.layers_checked == len(layers)
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    assert tied == (architecture in ("gpt2", "llama", "qwen2"))

    free = constraint.free_parameters(model, variant)
    assert set(free) == {name for name, _ in model.named_parameters() if "parametrizations" in name}
    before = {name: v.detach().clone() for name, v in free.items()}
    schedule = schedule_of(1, 1e-2, 0.1)
    optimizer = adamw(model, schedule.budget, undecayed=free)
    constraint.decay_effective_weights(optimizer, list(free.values()), schedule)
    language.block_losses(model, torch.arange(32).view(4, 8)).mean().backward()
    optimizer.step()
    assert all((v != before[name]).float().mean() > 0.9 for name, v in free.items()), "every V has a gradient"

    stepped, expected = constraint.verify(model, variant), probe(model)
    constraint.bake(model, variant)
    loaded = language.load(save_model(tmp_path / "model", model))
    assert constraint.verify(loaded, variant) == stepped
    assert torch.equal(probe(loaded), expected)
    assert (loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight) == tied
    assert not any("parametrizations" in name for name in loaded.state_dict())


@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_in_every_architecture_the_other_layers_keep_their_bytes(architecture, variant, tmp_path):
    model, before = network(architecture), network(architecture).state_dict()
    constraint.constrain(model, variant)
    constraint.bake(model, variant)
    after = language.load(save_model(tmp_path / "model", model)).state_dict()
    assert set(after) == set(before)
    changed = {name for name in before if not bytes_are_equal(before[name], after[name])}
    assert changed == {f"{name}.weight" for name in LAYERS[architecture, variant]}


@pytest.mark.parametrize(
    ("architecture", "variant", "layer"), [(*case, layer) for case in LAYERS for layer in sorted(LAYERS[case])]
)
def test_a_negative_weight_in_any_single_layer_of_any_architecture_is_found(architecture, variant, layer):
    model = network(architecture)
    constraint.constrain(model, variant)
    constraint.bake(model, variant)
    constraint.verify(model, variant)
    with torch.no_grad():
        model.get_submodule(layer).weight[7, 3] = -1e-6
    with pytest.raises(CheckFailed, match=layer):
        constraint.verify(model, variant)


@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_in_every_architecture_effective_weights_decay_as_matrices_do(architecture, variant):
    model = network(architecture)
    constraint.constrain(model, variant)
    free, schedule = constraint.free_parameters(model, variant), schedule_of(1, 2e-2, 0.1)
    before = {name: model.get_submodule(name).weight.detach().clone() for name in LAYERS[architecture, variant]}
    optimizer = adamw(model, schedule.budget, undecayed=free)
    for group in optimizer.param_groups:
        group["lr"] = schedule.learning_rate(1)
    constraint.decay_effective_weights(optimizer, list(free.values()), schedule)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, weight in before.items():
        expected = weight * (1 - 0.1 * schedule.learning_rate(1))
        assert torch.allclose(model.get_submodule(name).weight, expected, rtol=1e-5, atol=1e-9), name


# -------------------------------------------------------------------------------------- bake and verify


@VARIANTS
def test_baking_keeps_the_function_and_leaves_an_ordinary_model(variant, layers):
    model = tiny_model()
    constraint.constrain(model, variant)
    before, verified = probe(model), constraint.verify(model, variant)
    constraint.bake(model, variant)
    assert torch.equal(probe(model), before)
    assert set(model.state_dict()) == set(tiny_model().state_dict())
    assert constraint.verify(model, variant) == verified


@VARIANTS
def test_verification_counts_what_it_checked(variant, layers):
    model = tiny_model()
    constraint.constrain(model, variant)
    weights = [model.get_submodule(name).weight.detach() for name in layers]
    assert constraint.verify(model, variant).as_json() == {
        "variant": variant,
        "layers_checked": len(layers),
        "layers": sorted(layers),
        "weights_checked": len(layers) * 16 * 32,
        "min_weight": min(weight.min().item() for weight in weights),
        "max_weight": max(weight.max().item() for weight in weights),
    }


@pytest.mark.parametrize("layer", sorted(MLP_BOTH))
@pytest.mark.parametrize("value", [-1e-12, float("nan"), float("inf")])
def test_one_wrong_weight_in_any_named_layer_is_found_and_named(layer, value):
    model = tiny_model()
    constraint.constrain(model, "mlp_both")
    constraint.bake(model, "mlp_both")
    with torch.no_grad():
        model.get_submodule(layer).weight[3, 5] = value
    with pytest.raises(CheckFailed, match=layer):
        constraint.verify(model, "mlp_both")


def test_a_model_that_was_never_constrained_fails_verification():
    with pytest.raises(CheckFailed, match=r"finite and >= 0"):
        constraint.verify(tiny_model(), "mlp_in")


# ------------------------------------------------------------------------------------------------ decay


def schedule_of(steps: int, rate: float, decay: float) -> Schedule:
    budget = Budget(effective_batch_examples=1, learning_rate=rate, warmup_ratio=0.0, weight_decay=decay)
    return Schedule(budget, steps)


def decayed_once(w: torch.Tensor, rate: float, decay: float, ordinary: bool = False) -> torch.Tensor:
    """W after one AdamW step of zero gradient."""
    v = nn.Parameter(w.clone() if ordinary else Softplus().right_inverse(w))
    optimizer = torch.optim.AdamW([{"params": [v], "weight_decay": decay if ordinary else 0.0}], lr=rate)
    if not ordinary:
        at_half_its_peak = schedule_of(1, 2 * rate, decay)
        constraint.decay_effective_weights(optimizer, [v], at_half_its_peak)
    v.grad = torch.zeros_like(v)
    optimizer.step()
    return v.detach() if ordinary else softplus(v.detach())


@pytest.mark.parametrize("rate", [1e-1, 1e-2, 1e-3])
def test_effective_weights_decay_as_adamw_decays_a_matrix_to_first_order(rate):
    w = torch.logspace(-6, 0.7, 200, dtype=torch.float64)
    ours, theirs = decayed_once(w, rate, 0.1), decayed_once(w, rate, 0.1, ordinary=True)
    assert torch.allclose(theirs, w * (1 - rate * 0.1))
    step = rate * 0.1
    assert ((ours - theirs).abs() / w).max() <= 10 * step**2  # second order, W up to 5
    assert ((w - ours) / w).min() >= 0.9 * step


def test_decay_never_pulls_toward_ln_2():
    w = torch.logspace(-8, 1, 500, dtype=torch.float64)
    after = decayed_once(w, 0.1, 0.5)
    assert (after < w).all() and (after >= 0).all()


def test_without_weight_decay_nothing_decays():
    w = torch.logspace(-6, 0.7, 50, dtype=torch.float64)
    assert torch.equal(decayed_once(w, 0.1, 0.0), softplus(Softplus().right_inverse(w)))


def test_decay_is_not_lost_in_fp32_at_the_rates_of_the_real_study():
    """One step's share, 1e-7, is below half the spacing of V; taken together over 100 steps it is not."""
    w = (torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 0.02).abs().clamp_min(1e-4)
    v = nn.Parameter(Softplus().right_inverse(w))
    before = softplus(v.detach().double())
    schedule = schedule_of(1000, 1e-5, 0.01)
    optimizer = torch.optim.AdamW([{"params": [v], "weight_decay": 0.0}], lr=1e-5)
    constraint.decay_effective_weights(optimizer, [v], schedule)
    for step in range(1, 1001):
        optimizer.param_groups[0]["lr"] = schedule.learning_rate(step)
        v.grad = torch.zeros_like(v)
        optimizer.step()
    expected = 0.01 * sum(schedule.learning_rate(step) for step in range(1, 1001))
    lost = 1 - (softplus(v.detach().double()) / before).mean().item()
    assert lost == pytest.approx(expected, rel=0.1)


def test_decay_takes_each_step_s_rate_once_and_the_rest_at_the_last_step():
    v = nn.Parameter(torch.full((1,), -5.0, dtype=torch.float64))
    schedule = schedule_of(250, 1e-3, 0.5)
    optimizer = torch.optim.AdamW([{"params": [v], "weight_decay": 0.0}], lr=1e-3)
    constraint.decay_effective_weights(optimizer, [v], schedule)
    moved_at = []
    for step in range(1, 251):
        before = v.item()
        v.grad = torch.zeros_like(v)
        optimizer.step()
        if v.item() != before:
            moved_at.append(step)
    assert moved_at == [100, 200, 250]
    assert -5.0 - v.item() == pytest.approx(0.5 * sum(map(schedule.learning_rate, range(1, 251))), rel=0.01)
