"""Certificates: what is proved holds, what is refuted falls, and what is neither is not called either."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers.activations import ACT2FN

from storage.errors import BadInput, CheckFailed
from tasks.monotonic import certificate, constraint
from tasks.monotonic.certificate import Fall, certify, certify_sublayer, fall_in_float64, search
from tasks.monotonic.sublayer import ACTIVATIONS, feed_forward_sublayers
from tests.conftest import REPOSITORY
from tests.tasks.monotonic.architectures import LAYERS, network
from tests.tasks.tiny import tiny_model

FULL = {"gpt_neox": "mlp_both", "gpt2": "mlp_both", "llama": "gated_all"}


def with_biases(model: Any) -> Any:
    """The biases of a trained network are not 0."""
    chance = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "mlp" in name and name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=chance))
    return model


def non_negative(model: Any, variant: str = "mlp_both") -> Any:
    with torch.no_grad():
        for layer in constraint.constrained_modules(model, variant).values():
            layer.weight.abs_()
    return with_biases(model)


def neox(activation: str) -> Any:
    return tiny_model(activation=activation)


# ------------------------------------------------------------------------------------------------ proofs


@pytest.mark.parametrize("activation", ["relu", "monotone-parts"])
def test_non_negative_weights_and_an_activation_that_never_falls_certify(activation):
    found = certify(non_negative(neox(activation)), "mlp_both")
    assert (found.certified, found.activation, found.variant) == ("yes", activation, "mlp_both")
    assert found.tensors_checked == 4
    assert "feed-forward sublayer" in found.scope and "not the model" in found.scope
    for one in found.sublayers:
        assert one.worst_violation_found == 0.0 and one.counterexample is None


@pytest.mark.parametrize(("activation", "certified"), [("relu", "yes"), ("monotone-parts", "yes"), ("gelu", False)])
def test_one_sign_for_each_hidden_unit_certifies_too(activation, certified):
    model = non_negative(neox(activation))
    with torch.no_grad():
        for block in model.gpt_neox.layers:
            block.mlp.dense_h_to_4h.weight[::2] *= -1
            block.mlp.dense_4h_to_h.weight[:, ::2] *= -1
    found = certify(model, "mlp_both")
    assert (found.certified == "yes") == bool(certified)


def test_a_hidden_unit_that_nothing_reads_may_have_any_weights():
    model = non_negative(neox("relu"))
    with torch.no_grad():
        model.gpt_neox.layers[0].mlp.dense_h_to_4h.weight[4, ::2] *= -1
        model.gpt_neox.layers[0].mlp.dense_4h_to_h.weight[:, 4] = 0.0
    assert certify(model, "mlp_both").certified == "yes"


def test_sublayers_that_are_switched_off_are_constant_and_so_monotone():
    model = tiny_model()
    with torch.no_grad():
        for layer in constraint.constrained_modules(model, "mlp_both").values():
            layer.weight.zero_()
    assert certify(with_biases(model), "mlp_both").sublayers[0].worst_violation_found == 0.0
    model = neox("relu")
    with torch.no_grad():
        for layer in constraint.constrained_modules(model, "mlp_both").values():
            layer.weight.zero_()
    assert certify(with_biases(model), "mlp_both").certified == "yes"


# ---------------------------------------------------------------------------------------- counterexamples


def test_gelu_with_non_negative_weights_is_refuted_by_a_pair_that_everyone_can_check():
    model = non_negative(neox("gelu"))
    found = certify(model, "mlp_both")
    worst = found.sublayers[0]
    assert (found.certified, worst.certified) == ("no", "no")
    pair = worst.counterexample
    assert pair is not None and "gelu falls" in worst.reason
    x, y = torch.tensor(pair.x).double(), torch.tensor(pair.y).double()
    assert (x <= y).all() and (x < y).any()
    sublayer = model.double().get_submodule(worst.sublayer)
    with torch.no_grad():
        fall = (sublayer(x) - sublayer(y))[pair.output].item()
    assert fall > 0 and pair.fall == pytest.approx(fall, rel=1e-6)
    assert worst.worst_violation_found == pytest.approx(-fall / (y - x).sum().item(), rel=1e-6)
    assert all(one.counterexample is None for one in found.sublayers[1:])


@pytest.mark.parametrize(("matrix", "answer"), [("dense_h_to_4h", "no"), ("dense_4h_to_h", "unknown")])
def test_one_weight_of_the_other_sign_is_found_and_proves_nothing(matrix, answer):
    model = non_negative(neox("relu"))
    weight = getattr(model.gpt_neox.layers[1].mlp, matrix).weight
    with torch.no_grad():
        weight[3, 5] = -weight[3, 5]
    found = certify(model, "mlp_both")
    assert found.certified == answer
    assert [one.certified for one in found.sublayers] == [answer, "yes"]
    assert found.sublayers[0].sublayer == "gpt_neox.layers.1.mlp"
    assert found.sublayers[0].reason == "1 of 32 hidden units join weights of both signs"


def test_a_variant_that_leaves_a_projection_free_proves_nothing_and_says_why():
    model = non_negative(neox("relu"), "mlp_in")
    found = certify(model, "mlp_in")
    assert found.certified == "no" and found.tensors_checked == 4
    assert found.sublayers[0].reason.endswith("as the variant leaves dense_4h_to_h free")


def test_a_gated_sublayer_is_never_proved():
    model = network("llama")
    with torch.no_grad():
        for layer in constraint.constrained_modules(model, "gated_all").values():
            layer.weight.abs_()
    found = certify(model, "gated_all")
    assert found.tensors_checked == 6
    assert found.certified == "no" and "no theorem" in found.sublayers[0].reason


def test_inputs_that_were_seen_take_part_in_the_search_and_the_answer_is_always_the_same():
    model = non_negative(neox("gelu"))
    name = "gpt_neox.layers.0.mlp"
    seen = {name: torch.randn(5, 16, generator=torch.Generator().manual_seed(1))}
    assert certify(model, "mlp_both", seen).as_json() == certify(model, "mlp_both", seen).as_json()
    first = feed_forward_sublayers(model, "mlp_both")[0]
    with_seen, without = ([fall.slope for fall in search(first, given)] for given in (seen[name] * 1000, None))
    assert with_seen != without


# ---------------------------------------------------------------------------- verification of what is found


def test_a_pair_that_does_not_fall_is_rejected_by_the_independent_forward(monkeypatch):
    model = non_negative(neox("relu"))
    sublayer = feed_forward_sublayers(model, "mlp_both")[0]
    x, y = np.zeros(16, np.float32), np.ones(16, np.float32)
    assert fall_in_float64(sublayer, x, y, 2) < 0
    assert fall_in_float64(sublayer, x, x, 2) < 0, "rounding is no fall"
    with pytest.raises(CheckFailed, match="ordered"):
        fall_in_float64(sublayer, y, x, 2)
    lies = [Fall(x, y, output, -5.0) for output in range(16)]
    monkeypatch.setattr(certificate, "search", lambda *_: lies)
    found = certify_sublayer(sublayer)
    assert (found.certified, found.worst_violation_found, found.counterexample) == ("yes", 0.0, None)


def test_a_counterexample_to_a_proof_stops_everything(monkeypatch):
    """With a wrong rule of signs, the search and not the rule decides."""
    monkeypatch.setattr(certificate, "against_a_proof", lambda _: [])
    with pytest.raises(CheckFailed, match="no counterexample to the proof of"):
        certify(with_biases(neox("relu")), "mlp_both")


@pytest.mark.parametrize("architecture", FULL)
def test_the_independent_forward_is_the_sublayer_s(architecture):
    model = with_biases(network(architecture))
    x = torch.randn(50, 16, generator=torch.Generator().manual_seed(0)).double() * 3
    for sublayer in feed_forward_sublayers(model, FULL[architecture]):
        found = sublayer.in_float64(x.numpy())
        with torch.no_grad():
            expected = sublayer.module.double()(x).numpy()
        assert np.abs(found - expected).max() < 1e-12


# ------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("architecture", FULL)
def test_every_matrix_of_every_feed_forward_sublayer_is_read(architecture):
    sublayers = feed_forward_sublayers(network(architecture), FULL[architecture])
    names = {f"{one.name}.{attribute}" for one in sublayers for attribute in one.layers}
    assert names == LAYERS[architecture, FULL[architecture]]


def test_no_tensor_at_all_is_refused(monkeypatch):
    only_attention = {"attn_out": {"GPTNeoXAttention": ["dense"]}}
    monkeypatch.setitem(constraint.ARCHITECTURES, "gpt_neox", constraint.ARCHITECTURES["gpt_neox"] | only_attention)
    with pytest.raises(CheckFailed, match="measured 0, required 1 or more"):
        certify(tiny_model(), "attn_out")
    with pytest.raises(BadInput, match="matches no layer"):
        certify(nn.Sequential(nn.Linear(2, 2)), "mlp_both")


def test_an_activation_that_is_not_the_configuration_s_is_refused():
    model = non_negative(neox("gelu"))
    model.config.hidden_act = "relu"
    with pytest.raises(CheckFailed, match=r"the activation of gpt_neox.layers.0.mlp is relu"):
        certify(model, "mlp_both")
    model.config.hidden_act = "mish"
    with pytest.raises(BadInput, match="the slope of the activation mish"):
        certify(model, "mlp_both")


def test_a_weight_that_is_not_finite_is_refused():
    model = non_negative(neox("relu"))
    with torch.no_grad():
        model.gpt_neox.layers[0].mlp.dense_h_to_4h.weight[0, 0] = torch.nan
    with pytest.raises(CheckFailed, match=r"layers.0.mlp.dense_h_to_4h is finite"):
        certify(model, "mlp_both")


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_have_their_formulas_and_slopes(name):
    z = torch.linspace(-12, 12, 40_001, dtype=torch.float64)[:, None].repeat(1, 16).requires_grad_()
    values = ACT2FN[name](z)
    known = ACTIVATIONS[name]
    assert np.abs(known.formula(z.detach().numpy()) - values.detach().numpy()).max() < 1e-9
    (slopes,) = torch.autograd.grad(values.sum(), z)
    assert known.lowest_slope <= slopes.min().item() < known.lowest_slope + 2e-4
    assert known.highest_slope - 2e-4 < slopes.max().item() <= known.highest_slope


def test_what_numpy_s_blas_is_told_to_use_changes_no_bit_of_a_verified_fall():
    """A SLURM job has not the variables of the shell that submits it, and OpenBLAS chooses its kernels by them."""
    program = (
        "import hashlib, numpy as np; from tasks.monotonic.sublayer import product; g = np.random.default_rng(0); "
        "print(hashlib.sha256(product(g.random((2, 128)), g.random((512, 128))).tobytes()).hexdigest())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"OPENBLAS_CORETYPE": core, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for core in ("Haswell", "Prescott")
    }
    assert len(printed) == 1


def test_a_sublayer_that_is_switched_off_is_proved_monotone():
    model = network("gpt_neox")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ".mlp." in name and name.endswith("weight"):
                parameter.zero_()
    for sublayer in certify(model, "mlp_both").sublayers:
        assert (sublayer.certified, sublayer.worst_violation_found) == ("yes", 0.0)
