"""Where constrained weights start: positive part, absolute, and least squares under the signs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import nnls

from tasks.monotonic import distillation
from tasks.monotonic.constraint import constrained_modules, verify
from tasks.monotonic.distillation import signed_least_squares
from tests.tasks.monotonic.architectures import CALIBRATION_BL, LAYERS, begun, network
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


# -------------------------------------------------------------------------------------------- least squares


def problem(tokens: int, inputs: int, outputs: int, seed: int = 0):
    generator = np.random.default_rng(seed)
    x_TI = np.abs(generator.normal(size=(tokens, inputs))) @ generator.normal(size=(inputs, inputs))
    return x_TI, generator.normal(size=(tokens, outputs)) + x_TI @ generator.normal(size=(inputs, outputs))


def solved(x_TI, y_TO, signs_OI, start_OI):
    tensors = (x_TI.T @ x_TI, y_TO.T @ x_TI, signs_OI, start_OI)
    return signed_least_squares(*(torch.from_numpy(array) for array in tensors)).numpy()


def test_the_fit_is_that_of_scipy_s_nnls_row_by_row_and_sign_by_sign():
    x_TI, y_TO = problem(300, 20, 6)
    signs_OI = np.random.default_rng(1).choice([-1.0, 1.0], (6, 20))
    found_OI = solved(x_TI, y_TO, signs_OI, np.zeros((6, 20)))
    assert (found_OI * signs_OI >= 0).all()
    for row in range(6):
        weight, norm = nnls(x_TI * signs_OI[row], y_TO[:, row])
        assert np.linalg.norm(x_TI @ found_OI[row] - y_TO[:, row]) <= norm * (1 + 1e-6)
        assert np.allclose(found_OI[row], weight * signs_OI[row], atol=1e-3)


def test_inputs_that_are_always_zero_and_signs_that_are_off_are_no_harm():
    x_TI, y_TO = problem(50, 5, 3)
    x_TI[:, 2] = 0
    signs_OI = np.ones((3, 5))
    signs_OI[1] = 0
    found_OI = solved(x_TI, y_TO, signs_OI, np.ones((3, 5)))
    assert np.isfinite(found_OI).all() and not found_OI[1].any()
    assert not np.isnan(solved(0 * x_TI, y_TO, signs_OI, np.ones((3, 5)))).any()


@pytest.mark.parametrize("iterations", [1, 4, 16, 64])
def test_a_fit_that_is_cut_short_is_not_worse_than_its_start(monkeypatch, iterations):
    monkeypatch.setattr(distillation, "MAX_ITERATIONS", iterations)
    for seed in range(5):
        x_TI, y_TO = problem(200, 15, 4, seed)
        start_OI = np.linalg.lstsq(x_TI, y_TO, rcond=None)[0].T.clip(0)
        found_OI = solved(x_TI, y_TO, np.ones((4, 15)), start_OI)
        errors = [np.linalg.norm(x_TI @ w.T - y_TO, axis=0) for w in (start_OI, found_OI)]
        assert (errors[1] <= errors[0]).all() and (errors[1] < errors[0]).any()


@pytest.mark.parametrize("bias", [True, False])
def test_weights_are_fitted_beside_the_bias_where_there_is_one(bias):
    """Far from 0 on average: a fit through 0, with a bias chosen after it, is another."""
    x_TI, y_TO = problem(300, 10, 3)
    x_TI, y_TO = x_TI + 5, y_TO + 50
    layer = torch.nn.Linear(10, 3, bias=bias)
    moments = distillation.Moments.of(torch.from_numpy(x_TI), torch.from_numpy(y_TO))
    with torch.no_grad():
        distillation._fit_layer(layer, moments, torch.ones(3, 10))
        fitted_TO = layer(torch.from_numpy(x_TI).float()).double().numpy()
    for row in range(3):
        means = (x_TI.mean(0), y_TO[:, row].mean()) if bias else (0, 0)
        norm = nnls(x_TI - means[0], y_TO[:, row] - means[1])[1]
        assert np.linalg.norm(fitted_TO[:, row] - y_TO[:, row]) == pytest.approx(norm, rel=1e-4)


# ---------------------------------------------------------------------------------------------- distilling


def inputs_and_outputs(model, name):
    found = {}
    layer = model.get_submodule(name)
    handle = layer.register_forward_hook(lambda _, inputs, output: found.update(x=inputs[0], y=output))
    with torch.no_grad():
        model(input_ids=CALIBRATION_BL)
    handle.remove()
    return found["x"].flatten(0, 1), found["y"].flatten(0, 1)


@pytest.mark.parametrize("signs", ["non-negative", "random"])
@EVERY
def test_no_layer_is_fitted_worse_than_its_positive_part_on_the_same_inputs(architecture, variant, signs):
    model, base = network(architecture), network(architecture)
    allowed = begun(model, variant, signs, "distilled", by="projection")
    verify(model, variant, allowed)
    better = 0
    for name, layer in constrained_modules(base, variant).items():
        x_TI, fitted_TO = inputs_and_outputs(model, name)
        target_TO = inputs_and_outputs(base, name)[1]
        with torch.no_grad():
            sign = allowed.layers[name]
            layer.weight.copy_(sign * (sign * layer.weight).clamp(min=0))  # after its target was read
            positive_TO = layer(x_TI)
        error, reference = ((y - target_TO).square().sum().item() for y in (fitted_TO, positive_TO))
        assert error <= reference * (1 + 1e-6), name
        better += error < 0.9 * reference
        base = network(architecture)
    assert better == len(LAYERS[architecture, variant])


def test_distilling_is_the_same_twice_and_in_any_batch_to_rounding():
    models = []
    for batch in (4, 4, 3):
        model = network("gpt2")
        allowed = begun(network("gpt2"), "mlp_both", by="projection")
        distillation.distill(model, "mlp_both", allowed, CALIBRATION_BL, batch)
        models.append(model.state_dict())
    assert all(bytes_are_equal(models[0][name], models[1][name]) for name in models[0])
    assert all(torch.allclose(models[0][name], models[2][name], atol=1e-4) for name in models[0])


def test_only_constrained_layers_and_their_biases_change():
    model, base = network("gpt_neox"), network("gpt_neox").state_dict()
    begun(model, "mlp_in", start="distilled", by="projection")
    changed = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, base[name])}
    assert changed == {f"{name}.{kind}" for name in LAYERS["gpt_neox", "mlp_in"] for kind in ("weight", "bias")}
