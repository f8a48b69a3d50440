"""Rates by trying: what learns is recommended, and on raw inputs nothing is, and the reason names why."""

import pytest
import torch

from storage.errors import CheckFailed
from tasks.stage.execution import Execution
from tasks.training.budget import Budget
from tasks.training.problem import Problem, adamw
from tasks.training.schedule import Schedule
from tasks.training.trials.findings import RateRow, Recommendation, Tried, rate_row, recommended
from tasks.training.trials.short import fit_single_batch, try_rate
from tests.tasks.tiny import ToyConfig, toy_problem
from tests.tasks.training.pulses import ISOTROPIC, TRAINED, PulseNetwork, angles, events

EXECUTION = Execution(micro_batch_examples=32, cpu_threads=1)


def pulse_rows(normalised: bool, rates: list[float]) -> list[RateRow]:
    """Twenty steps at each rate, with three seeds; the probe is one half of what is not trained on."""
    pulses, directions = events(TRAINED + 256, normalised)

    def tried(rate: float, seed: int) -> Tried:
        torch.manual_seed(seed)
        network = PulseNetwork()
        budget = Budget(steps=20, learning_rate=rate, warmup_ratio=0.0, decay="constant")
        problem = Problem(
            network,
            adamw(network, budget),
            lambda indices, _epoch: (pulses[indices], directions[indices]),
            lambda model, given: angles(model, *given),
            lambda model: angles(model, pulses[TRAINED:], directions[TRAINED:]).mean().item(),
        )
        return try_rate(problem, Schedule(budget, TRAINED), seed, EXECUTION)

    return [rate_row(rate, [tried(rate, seed) for seed in range(3)]) for rate in rates]


def test_on_normalised_inputs_a_rate_is_recommended_and_on_raw_ones_none_is():
    rates = [1e-5, 1e-3, 1e-2]
    normalised, raw = pulse_rows(True, rates), pulse_rows(False, rates)
    found = recommended(normalised, max_gradient_norm=100, min_gain=0.01)
    assert found.rate == 1e-2 and found.because.startswith(
        "of the rates with which every one of 3 seeds gains 0.01 or more and no gradient is above 100, 0.01 gains most "
        "on average, -0."
    )
    assert max(row.gradient_norm_max for row in normalised) < 100
    nothing = recommended(raw, max_gradient_norm=100, min_gain=0.01)
    assert nothing.rate is None and all(f"{rate:g}: " in nothing.because for rate in rates)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, ""),
        ({"failed": 1}, "1 of 3 seeds ended in numbers that are not finite"),
        ({"gradient_norm_max": 4.3e8}, "gradients up to 4.3e+08, more than 100"),
        ({"high": 0.02}, "not every seed gains 0.01 (-0.08 to +0.02)"),
        ({"high": -0.005}, "not every seed gains 0.01 (-0.08 to -0.005)"),
    ],
)
def test_a_rate_is_taken_only_where_gradients_and_every_seed_allow_it(changed, said):
    row = RateRow(rate=3e-4, seeds=3, failed=0, mean=-0.05, low=-0.08, high=-0.03, gradient_norm_max=3.0)
    weaker = row.model_copy(update={"rate": 1e-5, "mean": -0.02, "low": -0.03, "high": -0.01})
    found = recommended([weaker, row.model_copy(update=changed)], max_gradient_norm=100, min_gain=0.01)
    assert found.rate == (1e-5 if said else 3e-4)
    assert not said or f"(0.0003: {said})" in found.because, "why a better one was left out"
    alone = recommended([row.model_copy(update=changed)], max_gradient_norm=100, min_gain=0.01)
    if said:
        because = f"none of the rates that were tried can be recommended (0.0003: {said})"
        assert alone == Recommendation(rate=None, because=because)


@pytest.mark.parametrize("fault", ["poisoned_loss", "poisoned_gradient"])
def test_what_is_not_finite_is_a_result_that_names_tensor_and_step(fault):
    config = ToyConfig(budget=Budget(steps=12, effective_batch_examples=8, learning_rate=0.05))
    clean = try_rate(toy_problem(config), Schedule(config.budget, 45), 3, EXECUTION)
    assert clean.failed is None and clean.change is not None and clean.change < 0
    config = config.model_copy(update={fault: 7})
    found = try_rate(toy_problem(config), Schedule(config.budget, 45), 3, EXECUTION)
    assert found.change is None and found.failed is not None
    tensor = "the loss" if fault == "poisoned_loss" else "the gradient of outer.weight"
    assert found.failed.startswith(f"{tensor} at step ")
    row = rate_row(0.05, [clean, found, clean])
    assert (row.seeds, row.failed, row.mean, row.high) == (3, 1, clean.change, clean.change)
    assert rate_row(0.05, [found] * 3).mean is None


def test_the_largest_gradient_is_that_of_any_step_and_not_of_the_last():
    def largest(steps: int) -> float:
        budget = Budget(steps=steps, effective_batch_examples=8, learning_rate=0.05, warmup_ratio=0.0, decay="constant")
        return try_rate(toy_problem(ToyConfig(budget=budget)), Schedule(budget, 45), 3, EXECUTION).gradient_norm_max

    found = [largest(steps) for steps in range(1, 9)]
    assert found == sorted(found) and len(set(found)) > 1 and found[-1] == found[-2]


def test_the_same_try_gives_the_same_bits_for_any_micro_batch_order_of_work_and_worker():
    config = ToyConfig(budget=Budget(steps=6, effective_batch_examples=8, learning_rate=0.05))
    schedule = Schedule(config.budget, 45)
    once, again = (try_rate(toy_problem(config), schedule, 3, EXECUTION) for _ in range(2))
    threads = EXECUTION.model_copy(update={"loader_workers": 2})
    assert once == again == try_rate(toy_problem(config), schedule, 3, threads)


EXAMPLES = 32


def fitted(limit: float, micro_batch: int = 32, frozen: bool = False) -> float:
    pulses, directions = (values[:EXAMPLES] for values in events(EXAMPLES, True))
    torch.manual_seed(1)
    network = PulseNetwork()
    if frozen:
        network.requires_grad_(False)
        network.event.bias.requires_grad_(True)
    budget = Budget(
        steps=300, effective_batch_examples=EXAMPLES, learning_rate=3e-3, warmup_ratio=0.0, decay="constant"
    )
    problem = Problem(
        network,
        adamw(network, budget),
        lambda indices, _epoch: (pulses[indices], directions[indices]),
        lambda model, given: angles(model, *given),
        lambda model: angles(model, pulses, directions).mean().item(),
    )
    execution = Execution(micro_batch_examples=micro_batch)
    return fit_single_batch(problem, Schedule(budget, EXAMPLES), 5, execution, limit)


def test_normalised_inputs_fit_one_batch_and_the_gate_lets_them_pass():
    after = fitted(0.25 * ISOTROPIC)
    assert after < 0.3 and fitted(after) == after, "the same configuration gives the same bits"
    assert fitted(1.0, micro_batch=8) == pytest.approx(after, abs=0.1), "every step has all examples"


@pytest.mark.parametrize("limit", [0.25 * ISOTROPIC, float("nan")])
def test_weights_that_do_not_move_fit_no_batch_and_are_refused_with_numbers(limit):
    """Only a bias learns: the best that it can do is one direction for all."""
    said = r"the model fits one batch: measured .* after 300 steps on the same 32, from .*, required at most"
    with pytest.raises(CheckFailed, match=said):
        fitted(limit, frozen=True)
