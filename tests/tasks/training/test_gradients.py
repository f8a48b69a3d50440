"""Gradient norms of an epoch and what they say about clipping; which parameters decay."""

import json
import math

import numpy as np
import pytest
import torch
from torch import nn

from storage import durable
from tasks.training.budget import Budget
from tasks.training.gradients import GradientNorms
from tasks.training.problem import adamw
from tests.tasks.tiny import ToyConfig, toy_attempt, toy_directory

TOY = ToyConfig()


def of(norms, clip=1.0):
    counted = GradientNorms()
    for norm in norms:
        counted.add(float(norm), clip)
    return counted


def test_the_largest_norm_and_the_clipped_share_are_exact():
    row = of([0.5, 2.0, 0.25, 8.0]).row()
    assert row["gradient_norm_max"] == 8.0
    assert row["gradient_steps_clipped_share"] == 0.5


@pytest.mark.parametrize("seed", range(3))
def test_nine_of_ten_norms_are_below_the_usual_one_to_within_a_bin(seed):
    norms = np.random.default_rng(seed).lognormal(0, 1.5, 1000)
    exact = np.sort(norms)[899]
    assert exact <= of(norms).typical() <= exact * 10 ** (1 / 20) * (1 + 1e-9)


@pytest.mark.parametrize("norm", [0.0, 1e-30, 1e30, 1e-8])
def test_norms_beyond_the_bins_are_counted_in_the_outermost(norm):
    counted = of([norm])
    assert counted.count == 1 and counted.typical() <= max(norm, 1e-8) and math.isfinite(counted.typical())


def test_every_epoch_has_a_row_of_its_own_norms(tmp_path):
    toy_attempt(tmp_path, TOY)
    run = toy_directory(tmp_path, TOY)
    rows = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    norms = [row for row in rows if "gradient_norm_max" in row]
    assert [(row["step"], row["epoch"]) for row in norms] == [(6, 1.0), (12, 2.0)]
    state = durable.read_json(run.checkpoints / "12" / "state.json")["position"]["gradient_norms"]
    assert state["count"] == 0
    assert norms[0]["gradient_norm_max"] != norms[1]["gradient_norm_max"]
    log = (run.attempts / "0001.log").read_text()
    assert log.count("largest gradient norm") == 2


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
