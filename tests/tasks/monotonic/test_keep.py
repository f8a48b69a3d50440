"""What keeps the signs in training: the projection, and softplus with its exact inverse and its decay."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from tasks.language.model import block_losses
from tasks.monotonic import keep
from tasks.monotonic.constraint import constrained_modules, verify
from tasks.monotonic.keep import SignedSoftplus, measure_movement
from tasks.training.budget import Budget
from tasks.training.problem import adamw
from tasks.training.schedule import Schedule
from tests.tasks.monotonic.architectures import LAYERS, begun, network
from tests.tasks.tiny import tiny_model

PLUS = torch.ones((), dtype=torch.int8)


def schedule_of(steps: int, rate: float, decay: float) -> Schedule:
    budget = Budget(effective_batch_examples=1, learning_rate=rate, warmup_ratio=0.0, weight_decay=decay)
    return Schedule(budget, steps)


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 3) -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        block_losses(model, torch.randint(0, 61, (4, 12), generator=generator)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


# ------------------------------------------------------------------------------------------- the inverse


def test_softplus_of_the_inverse_is_the_weight_s_size_from_1e_8_to_100():
    w = torch.logspace(-8, 2, 2001, dtype=torch.float64).float()
    softplus = SignedSoftplus(PLUS)
    for signed in (w, -w):
        back = softplus(softplus.right_inverse(signed))
        # V is about log W; its own rounding is |V| * 2^-24, which becomes relative in W
        assert ((back - w).abs() / w).max() <= 3 * abs(math.log(1e-8)) * 2**-24
    v = softplus.right_inverse(w)
    assert torch.equal(SignedSoftplus(-PLUS)(v), -softplus(v))


def test_the_inverse_agrees_with_double_precision():
    w = torch.logspace(-8, 2, 2001, dtype=torch.float64)
    exact = [math.log(math.expm1(a)) for a in w.tolist()]
    found = SignedSoftplus(PLUS).right_inverse(w.float()).tolist()
    # W itself is rounded to fp32 first, which moves V by 2^-24 / (1 - e^-W) at most
    assert all(abs(v - e) <= 4e-7 * max(1.0, abs(e)) for v, e in zip(found, exact, strict=True))


def test_the_inverse_is_finite_where_e_to_the_weight_is_not():
    v = SignedSoftplus(PLUS).right_inverse(torch.tensor([88.0, 100.0, 1e4, 1e30]))
    assert torch.equal(v, torch.tensor([88.0, 100.0, 1e4, 1e30]))


def test_a_weight_of_zero_becomes_the_smallest_weight_and_can_still_learn():
    softplus = SignedSoftplus(PLUS)
    v = softplus.right_inverse(torch.tensor([0.0, -0.0, 1e-30])).requires_grad_()
    w = softplus(v)
    w.sum().backward()
    assert v.isfinite().all() and (v.grad > 0).all()
    assert w.tolist() == pytest.approx([keep.SMALLEST_WEIGHT] * 3, rel=2e-6)


def test_a_step_moves_a_small_weight_by_its_own_share_of_it():
    softplus = SignedSoftplus(PLUS)
    v = softplus.right_inverse(torch.tensor([0.02], dtype=torch.float64))
    assert (softplus(v + 1e-4) - softplus(v)).item() / 1e-4 == pytest.approx(0.02, rel=0.02)


# --------------------------------------------------------------------------------------------- in training


@pytest.mark.parametrize("by", ["projection", "softplus"])
@pytest.mark.parametrize("signs", ["non-negative", "random"])
def test_signs_hold_after_every_step_and_baking_keeps_the_function(by, signs):
    model = tiny_model()
    allowed = begun(model, "mlp_both", signs, "absolute", by)
    optimizer = keep.optimizer(model, "mlp_both", allowed, by, schedule_of(9, 0.1, 0.01))
    for _ in range(3):
        trained(model, optimizer, 1)
        verified = verify(model, "mlp_both", allowed)
    assert (verified.share_of_zeros > 0.1) == (by == "projection"), "a large rate drives weights to the border"
    tokens = torch.arange(16).view(2, 8)
    before = model(input_ids=tokens).logits
    keep.bake(model, "mlp_both")
    assert torch.equal(model(input_ids=tokens).logits, before)
    assert set(model.state_dict()) == set(tiny_model().state_dict())
    assert verify(model, "mlp_both", allowed) == verified


def test_projected_training_is_adamw_but_for_the_projection():
    free, kept = tiny_model(), tiny_model()
    allowed = begun(kept, "mlp_both", "own", "positive-part", "projection")
    schedule = schedule_of(1, 1e-2, 0.1)
    trained(free, adamw(free, schedule.budget), 1)
    trained(kept, keep.optimizer(kept, "mlp_both", allowed, "projection", schedule), 1)
    for name, weight in free.state_dict().items():
        signs = allowed.layers.get(name.removesuffix(".weight"))
        projected = weight if signs is None else torch.where(signs * weight > 0, weight, 0.0)
        assert (signs is None or name.endswith("bias")) or not torch.equal(projected, weight)
        assert torch.equal(kept.state_dict()[name], projected), name


def test_layers_that_are_off_stay_off_and_do_not_count_in_the_gradient_s_norm():
    model = tiny_model()
    allowed = begun(model, "mlp_both", "off", "positive-part", "projection")
    optimizer = keep.optimizer(model, "mlp_both", allowed, "projection", schedule_of(3, 0.1, 0.1))
    block_losses(model, torch.arange(32).view(4, 8)).mean().backward()
    assert all(model.get_submodule(name).weight.grad is None for name in allowed.layers)
    trained(model, optimizer)
    assert verify(model, "mlp_both", allowed).share_of_zeros == 1.0


# ------------------------------------------------------------------------------------------------ decay


@pytest.mark.parametrize("by", ["projection", "softplus"])
@pytest.mark.parametrize(("architecture", "variant"), LAYERS)
def test_in_every_architecture_effective_weights_decay_as_matrices_do(architecture, variant, by):
    model, schedule = network(architecture), schedule_of(1, 2e-2, 0.1)
    allowed = begun(model, variant, "random", "absolute", by)
    before = {name: model.get_submodule(name).weight.detach().clone() for name in LAYERS[architecture, variant]}
    optimizer = keep.optimizer(model, variant, allowed, by, schedule)
    for group in optimizer.param_groups:
        group["lr"] = schedule.learning_rate(1)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, weight in before.items():
        expected = weight * (1 - 0.1 * schedule.learning_rate(1))
        assert torch.allclose(model.get_submodule(name).weight, expected, rtol=1e-5, atol=1e-9), name


def parametrized(w: torch.Tensor) -> nn.Module:
    layer = nn.Linear(len(w), 1, bias=False, dtype=w.dtype)
    layer.weight = nn.Parameter(w[None].clone())
    parametrize.register_parametrization(layer, "weight", SignedSoftplus(PLUS))
    return layer


def stepped(layer: nn.Module, schedule: Schedule, steps: int) -> list[int]:
    """Steps of zero gradient; returns those after which V was another."""
    v, moved_at = keep.trained_parameter(layer), []
    optimizer = torch.optim.AdamW([{"params": [v], "weight_decay": 0.0}], lr=schedule.budget.learning_rate)
    keep.decay_effective_weights(optimizer, [layer], schedule)
    for step in range(1, steps + 1):
        before = v.detach().clone()
        v.grad = torch.zeros_like(v)
        optimizer.step()
        if not torch.equal(v, before):
            moved_at.append(step)
    return moved_at


@pytest.mark.parametrize("rate", [1e-1, 1e-2, 1e-3])
def test_effective_weights_decay_as_adamw_decays_a_matrix_to_first_order(rate):
    w = torch.logspace(-6, 0.7, 200, dtype=torch.float64)
    layer = parametrized(w)
    stepped(layer, schedule_of(1, 2 * rate, 0.1), 1)  # whose only step has half its peak
    lost, share = (w - layer.weight.detach()[0]) / w, rate * 0.1
    assert (lost - share).abs().max() <= 10 * share**2  # second order, W up to 5
    assert lost.min() >= 0.9 * share


def test_decay_never_pulls_toward_ln_2():
    w = torch.logspace(-8, 1, 500, dtype=torch.float64)
    layer = parametrized(w)
    stepped(layer, schedule_of(1, 0.2, 0.5), 1)
    assert (layer.weight < w).all() and (layer.weight >= 0).all()


def test_decay_is_not_lost_in_fp32_at_the_rates_of_the_real_study():
    """One step's share, 1e-7, is below half the spacing of V; taken together over 100 steps it is not."""
    w = (torch.randn(2000, generator=torch.Generator().manual_seed(0)) * 0.02).abs().clamp_min(1e-4)
    schedule, layer = schedule_of(1000, 1e-5, 0.01), parametrized(w)
    before = nn.functional.softplus(keep.trained_parameter(layer).detach().double())
    optimizer = torch.optim.AdamW([{"params": [keep.trained_parameter(layer)], "weight_decay": 0.0}], lr=1e-5)
    keep.decay_effective_weights(optimizer, [layer], schedule)
    for _ in range(1000):
        keep.trained_parameter(layer).grad = torch.zeros(1, 2000)
        optimizer.step()
    expected = 0.01 * sum(schedule.learning_rate(step) for step in range(1, 1001))
    lost = 1 - (nn.functional.softplus(keep.trained_parameter(layer).detach().double()) / before).mean().item()
    assert lost == pytest.approx(expected, rel=0.1)


def test_decay_takes_each_step_s_rate_once_and_the_rest_at_the_last_step():
    layer, schedule = parametrized(torch.full((1,), 0.0067, dtype=torch.float64)), schedule_of(250, 1e-3, 0.5)
    start = keep.trained_parameter(layer).item()
    assert stepped(layer, schedule, 250) == [100, 200, 250]
    moved = start - keep.trained_parameter(layer).item()
    assert moved == pytest.approx(0.5 * sum(map(schedule.learning_rate, range(1, 251))), rel=0.01)


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
    assert found.free == pytest.approx(0.3, rel=1e-3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" not in name and "wte" not in name and "lm_head" not in name:
                parameter.copy_(dict(start.named_parameters())[name])
    assert measure_movement(model, variant, start).free == 0.0, "embeddings alone moved"


def test_medians_are_of_the_weights_that_did_not_start_at_zero():
    start, model = tiny_model(), tiny_model()
    begun(start, "mlp_in", start="positive-part", by="projection")
    model.load_state_dict(start.state_dict())
    with torch.no_grad():
        for block in range(2):
            weight = model.get_submodule(INTO.format(block)).weight
            zero = weight == 0
            weight[~zero] *= torch.linspace(1, 3, int((~zero).sum()))
            weight[zero] = 5.0
    assert measure_movement(model, "mlp_in", start).constrained == pytest.approx(1.0, rel=0.02)


def test_the_effective_weight_is_what_moves():
    model, start = tiny_model(), tiny_model()
    begun(start, "mlp_both", start="absolute", by="projection")
    begun(model, "mlp_both", start="absolute", by="softplus")
    assert measure_movement(model, "mlp_both", start).constrained < 1e-5, "V has other values, W has not"
    with torch.no_grad():
        for layer in constrained_modules(model, "mlp_both").values():
            layer.parametrizations.weight.original.add_(0.5)
    assert measure_movement(model, "mlp_both", start).constrained == pytest.approx(0.64, abs=0.02)


def test_where_all_started_at_zero_there_is_no_median():
    model, start = tiny_model(), tiny_model()
    for each in (model, start):
        begun(each, "mlp_both", "off", "positive-part", "projection")
    found = measure_movement(model, "mlp_both", start)
    assert found.constrained is None and found.free == 0.0
