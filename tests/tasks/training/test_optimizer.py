"""Matrices decay; biases, norms and what is named do not."""

import torch
from torch import nn

from tasks.training.budget import Budget
from tasks.training.optimizer import adamw

BUDGET = Budget(learning_rate=0.1, weight_decay=0.5)


def after_a_step_without_gradient(undecayed: tuple[str, ...] = ()) -> dict[str, float]:
    """Parameter name -> the factor by which one step of zero gradient changed it."""
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    for parameter in model.parameters():
        nn.init.ones_(parameter)
        parameter.grad = torch.zeros_like(parameter)
    adamw(model, BUDGET, undecayed).step()
    return {name: round(parameter.flatten()[0].item(), 6) for name, parameter in model.named_parameters()}


def test_weight_matrices_decay_and_biases_and_norms_do_not():
    assert after_a_step_without_gradient() == {
        "0.weight": 0.95,
        "0.bias": 1.0,
        "1.weight": 1.0,
        "1.bias": 1.0,
        "2.weight": 0.95,
        "2.bias": 1.0,
    }


def test_a_named_matrix_does_not_decay():
    assert after_a_step_without_gradient(("2.weight",))["2.weight"] == 1.0


def test_a_model_with_nothing_to_decay_can_be_optimised():
    adamw(nn.LayerNorm(3), BUDGET).step()


def test_the_moments_decay_as_the_budget_says():
    model = nn.Linear(2, 2)
    assert {group["betas"] for group in adamw(model, BUDGET).param_groups} == {(0.9, 0.999)}
    chosen = BUDGET.model_copy(update={"beta_1": 0.8, "beta_2": 0.95})
    assert {group["betas"] for group in adamw(model, chosen).param_groups} == {(0.8, 0.95)}
