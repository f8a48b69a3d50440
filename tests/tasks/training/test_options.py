"""What a study may choose: steps, decays, patience, metrics, weights, draws; each goes on bit for bit."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from storage import durable
from storage.errors import BadInput
from tasks.stage.validation import validated
from tasks.training import result
from tasks.training.budget import Budget
from tasks.training.order import example_at
from tasks.training.problem import Problem
from tasks.training.schedule import Schedule
from tasks.training.state import Position
from tests.tasks import tiny
from tests.tasks.tiny import (
    SEEN,
    ToyConfig,
    toy_attempt,
    toy_directory,
    toy_problem,
    toy_to_the_end,
    what_must_be_equal,
)

PLAIN = ToyConfig()
WEIGHTED = ToyConfig(weighted=True, dropout=0.0, budget=PLAIN.budget.model_copy(update={"max_gradient_norm": 1e9}))
CHOSEN = ToyConfig(
    budget=Budget(
        steps=14,
        effective_batch_examples=8,
        learning_rate=0.05,
        decay="cosine",
        beta_1=0.8,
        beta_2=0.99,
        validations_per_epoch=2,
    ),
    noise=0.2,
    weighted=True,
    metrics=["absolute_error", "squared_error", "bias"],
    files=[20, 5, 0, 20],
    trivial=2.0,
)
IMPATIENT = ToyConfig(
    budget=Budget(
        epochs=50.0,
        effective_batch_examples=8,
        learning_rate=0.3,
        decay="constant",
        validations_per_epoch=4,
        patience_validations=3,
    )
)


def rows_of(root, config):
    return [json.loads(line) for line in toy_directory(root, config).metrics_file.read_text().splitlines()]


def result_of(root, config):
    return durable.read_json(toy_directory(root, config).result_file)


@pytest.mark.parametrize("config", [CHOSEN, IMPATIENT], ids=["chosen", "impatient"])
def test_a_training_stopped_after_every_step_ends_with_the_same_bytes(tmp_path, config):
    toy_attempt(tmp_path / "whole", config, loader_workers=2)
    toy_to_the_end(tmp_path / "pieces", config, max_steps_per_run=1)
    whole, pieces = (what_must_be_equal(toy_directory(tmp_path / name, config)) for name in ("whole", "pieces"))
    assert pieces == whole


# ------------------------------------------------------------------------------------------------ budgets


def test_a_budget_in_steps_ends_after_them_within_an_epoch(tmp_path):
    assert toy_attempt(tmp_path, CHOSEN).end_state == "finished"
    assert result_of(tmp_path, CHOSEN)["training"]["steps"] == 14
    rows = rows_of(tmp_path, CHOSEN)
    assert [row["step"] for row in rows if "absolute_error" in row] == [3, 6, 9, 12, 14]
    assert [row["epoch"] for row in rows if "epoch" in row] == [1, 2, 14 / 6]


@pytest.mark.parametrize(
    ("fields", "which"),
    [
        ({"epochs": 1.0, "steps": 5}, "both, epochs 1 and steps 5"),
        ({"epochs": None}, "neither"),
        ({"epochs": None, "steps": None}, "neither"),
    ],
)
def test_a_budget_with_both_or_neither_of_epochs_and_steps_is_refused_by_name(fields, which):
    with pytest.raises(BadInput, match=rf"budget: a budget has either epochs or steps, and here are {which}: leave"):
        validated(ToyConfig, {"budget": fields}, "the toy")


def test_a_budget_in_steps_is_the_same_after_it_was_written_and_read():
    budget = Budget(steps=5)
    assert (budget.epochs, Schedule(budget, 1000).total_steps) == (None, 5)
    assert Budget.model_validate(budget.model_dump(mode="json")) == budget


def test_an_option_that_is_not_used_is_neither_in_the_fingerprint_nor_in_the_result(tmp_path):
    fields = ["epochs", "effective_batch_examples", "learning_rate", "warmup_ratio", "weight_decay"]
    fields += ["max_gradient_norm", "precision", "validations_per_epoch"]
    assert list(PLAIN.scientific()["budget"]) == fields
    toy_attempt(tmp_path, PLAIN)
    described = result_of(tmp_path, PLAIN)["training"]
    assert list(described) == ["steps", "best_step", "best_validation_loss"]


# ----------------------------------------------------------------------------------------------- patience


def test_patience_ends_a_training_after_so_many_validations_without_a_new_best(tmp_path):
    assert toy_attempt(tmp_path, IMPATIENT).end_state == "finished"
    found = result_of(tmp_path, IMPATIENT)
    losses = [loss for _, loss in found["validations"]]
    assert losses.index(min(losses)) == len(losses) - 4  # three after it
    for count in range(4, len(losses)):
        assert losses[:count].index(min(losses[:count])) >= count - 3, "it could have ended earlier"
    described, steps = found["training"], found["steps"]
    assert steps == found["validations"][-1][0] == described["ended_early_at_step"] < 300
    assert described["best_step"] == found["validations"][-4][0]
    log = (toy_directory(tmp_path, IMPATIENT).attempts / "0001.log").read_text()
    assert f"ends early after step {steps} of 300: no validation since step {described['best_step']}" in log


def test_the_gradients_of_an_epoch_that_patience_cut_short_have_a_row(tmp_path):
    toy_attempt(tmp_path, IMPATIENT)
    steps = result_of(tmp_path, IMPATIENT)["steps"]
    assert steps % 6, "choose a rate with which it ends within an epoch"
    assert [row["epoch"] for row in rows_of(tmp_path, IMPATIENT) if "epoch" in row][-1] == steps / 6


def test_a_training_that_goes_on_getting_better_ends_at_its_last_step_and_says_so(tmp_path):
    patient = ToyConfig(budget=IMPATIENT.budget.model_copy(update={"epochs": 2.0, "patience_validations": 8}))
    toy_attempt(tmp_path, patient)
    described = result_of(tmp_path, patient)["training"]
    assert (described["steps"], described["ended_early_at_step"]) == (12, None)


# ------------------------------------------------------------------------------------------------ metrics


def test_every_metric_stands_in_rows_and_result_and_the_first_decides(tmp_path):
    toy_attempt(tmp_path, CHOSEN)
    rows = [row for row in rows_of(tmp_path, CHOSEN) if "absolute_error" in row]
    for row in rows:
        assert row.keys() == {"step", "absolute_error", "squared_error", "bias", "trivial", "ratio_to_trivial"}
        assert row["squared_error"] != row["absolute_error"]
        assert (row["trivial"], row["ratio_to_trivial"]) == ({"mean": 2.0}, row["absolute_error"] / 2.0)
    best = min(rows, key=lambda row: row["absolute_error"])
    described = result_of(tmp_path, CHOSEN)["training"]
    assert {name: described[f"best_{name}"] for name in ("step", "absolute_error", "squared_error")} == {
        name: best[name] for name in ("step", "absolute_error", "squared_error")
    }


def test_another_metric_that_decides_chooses_another_step():
    position = Position(step=2, best_step=1, best_value=0.5, validations=[[1, 0.5], [2, 0.6]])
    position.further_metrics = [{"step": 1, "mean": 3.0}, {"step": 2, "mean": 2.0}]
    problem = toy_problem(ToyConfig(metrics=["absolute_error"]))
    found = result.described(Schedule(Budget(), 64), problem, position)
    assert {name: value for name, value in found.items() if name.startswith("best_")} == {
        "best_step": 1,
        "best_absolute_error": 0.5,
        "best_mean": 3.0,
    }


def evaluating(monkeypatch, found):
    made = tiny.toy_problem

    def problem(config):
        given = made(config)
        given.evaluate = lambda _: found
        return given

    monkeypatch.setattr(tiny, "toy_problem", problem)


@pytest.mark.parametrize("found", [{"squared_error": 1.0}, {"absolute_error": 1.0, "step": 2.0}])
def test_metrics_without_the_one_that_decides_or_with_a_reserved_name_are_refused(tmp_path, monkeypatch, found):
    evaluating(monkeypatch, found)
    outcome = toy_attempt(tmp_path, ToyConfig(metrics=["absolute_error"]))
    assert outcome.end_state == "bad_input"
    assert f"are {', '.join(found)}: absolute_error, which decides" in outcome.message


def test_a_metric_that_does_not_decide_must_be_finite_too(tmp_path, monkeypatch):
    evaluating(monkeypatch, {"absolute_error": 1.0, "squared_error": float("inf")})
    outcome = toy_attempt(tmp_path, ToyConfig(metrics=["absolute_error"]))
    assert outcome.end_state == "numerical_failure"
    assert outcome.message == "the squared error is not finite at step 6, validation"


# ------------------------------------------------------------------------------------------------ weights


@pytest.mark.parametrize("micro_batch", [1, 3, 8])
def test_a_step_divides_the_sum_of_its_losses_by_the_sum_of_its_weights(tmp_path, micro_batch):
    """AdamW's first moment after the first step is a tenth of the window's gradient; the sixth window holds five."""
    few = WEIGHTED.model_copy(update={"examples": 5})
    for config in (WEIGHTED, few):
        SEEN.clear()
        toy_attempt(tmp_path, config, micro_batch_examples=micro_batch, max_steps_per_run=1)
        indices = np.array([example for some in SEEN for example in some])
        assert len(indices) == min(8, config.examples)
        problem = toy_problem(config)
        losses = problem.losses(problem.model, problem.batch(indices, 0))
        (expected,) = torch.autograd.grad(losses.sum() / int((1 + indices % 3).sum()), problem.model.inner.weight)
        kept = load_file(toy_directory(tmp_path, config).checkpoints / "1" / "optimizer.safetensors")
        assert torch.allclose(kept["0.exp_avg"] / 0.1, expected, rtol=1e-4, atol=1e-7)


def test_the_training_loss_of_a_row_is_the_mean_over_weights(tmp_path):
    still = WEIGHTED.model_copy(
        update={"budget": WEIGHTED.budget.model_copy(update={"learning_rate": 1e-30, "weight_decay": 0.0, "epochs": 1})}
    )
    toy_attempt(tmp_path, still)
    problem, indices = toy_problem(still), np.arange(45)
    expected = problem.losses(problem.model, problem.batch(indices, 0)).sum().item() / (1 + indices % 3).sum()
    assert rows_of(tmp_path, still)[0]["train_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [0.0, 0.0], [1.0, float("nan")], [1.0]])
def test_weights_by_which_nothing_can_be_divided_are_refused(weights):
    problem = toy_problem(PLAIN)
    problem.weights = lambda indices, epoch: np.array(weights)
    with pytest.raises(BadInput, match=r"the weights of the examples \[4, 7\] are \["):
        problem.window_weight(np.array([4, 7]), 0)


# -------------------------------------------------------------------------------------------------- draws


def test_what_a_batch_draws_is_another_noise_in_each_epoch_and_the_same_for_any_micro_batch(tmp_path):
    noisy = ToyConfig(noise=0.5, dropout=0.0)
    problem: Problem = toy_problem(noisy)
    indices = np.arange(45)
    first, second = problem.batch(indices, 0).x, problem.batch(indices, 1).x
    assert not torch.equal(first, second)
    assert torch.equal(torch.cat([problem.batch(indices[i : i + 7], 1).x for i in range(0, 45, 7)]), second)
    drawn = {}
    for size in (2, 8):
        toy_attempt(tmp_path / str(size), noisy, micro_batch_examples=size)
        drawn[size] = load_file(toy_directory(tmp_path / str(size), noisy).checkpoints / "12" / "model.safetensors")
    for name, tensor in drawn[8].items():
        assert torch.allclose(drawn[2][name], tensor, atol=1e-5), name


# ----------------------------------------------------------------------------------------------- schedule


def test_a_constant_rate_stays_at_its_peak_after_the_warm_up():
    plan = Schedule(Budget(steps=10, warmup_ratio=0.4, learning_rate=6.0, decay="constant"), 80)
    assert [plan.learning_rate(step) for step in range(1, 11)] == pytest.approx([1.5, 3.0, 4.5, *[6.0] * 7])


def test_a_cosine_falls_from_its_peak_to_zero_after_the_last_step():
    plan = Schedule(Budget(steps=10, warmup_ratio=0.3, learning_rate=2.0, decay="cosine"), 80)
    rates = [plan.learning_rate(step) for step in range(4, 12)]
    assert rates == pytest.approx([1 + np.cos(np.pi * k / 8) for k in range(1, 9)], abs=1e-12)
    assert plan.learning_rate(3) == 2.0 and rates[-1] == 0


@pytest.mark.parametrize("max_steps_per_run", [None, 3])
def test_examples_are_read_in_the_order_that_the_problem_names_also_after_a_stop(tmp_path, max_steps_per_run):
    config = PLAIN.model_copy(update={"files": [20, 5, 0, 20]})
    SEEN.clear()
    while toy_attempt(tmp_path, config, max_steps_per_run=max_steps_per_run).exit_code == 75:
        pass
    read = [index for indices in SEEN for index in indices]
    expected = [toy_problem(config).order(config.seed, epoch, np.arange(45), 45).tolist() for epoch in (0, 1)]
    assert read == expected[0] + expected[1] and expected[0] != expected[1]
    assert read != [index for epoch in (0, 1) for index in example_at(config.seed, epoch, np.arange(45), 45)]


DECAY = 0.7
UNAVERAGED = ToyConfig()
AVERAGED = ToyConfig(budget=UNAVERAGED.budget.model_copy(update={"ema_decay": DECAY}))


def tensors_of(root, config, step, group):
    return load_file(toy_directory(root, config).checkpoints / str(step) / f"{group}.safetensors")


@pytest.fixture(scope="module")
def averaged_run(tmp_path_factory):
    root = tmp_path_factory.mktemp("averaged")
    toy_attempt(root, AVERAGED, checkpoint_every_steps=1, keep_checkpoints=50)
    return root


def test_the_average_is_the_recursion_over_the_weights_of_every_step(averaged_run):
    expected = tensors_of(averaged_run, AVERAGED, 1, "model")
    for step in range(2, 13):
        weights = tensors_of(averaged_run, AVERAGED, step, "model")
        expected = {name: DECAY * average + (1 - DECAY) * weights[name] for name, average in expected.items()}
    last = tensors_of(averaged_run, AVERAGED, 12, "average")
    for name, tensor in expected.items():
        assert torch.allclose(last[name], tensor, atol=1e-6), name
        assert not torch.allclose(tensors_of(averaged_run, AVERAGED, 12, "model")[name], tensor, atol=1e-4), name


def test_averaging_does_not_touch_the_training_itself(averaged_run, tmp_path):
    toy_attempt(tmp_path, UNAVERAGED)
    plain, averaged = tensors_of(tmp_path, UNAVERAGED, 12, "model"), tensors_of(averaged_run, AVERAGED, 12, "model")
    assert all(torch.equal(plain[name], averaged[name]) for name in plain)


def test_the_averaged_weights_are_validated_and_kept(averaged_run):
    run = toy_directory(averaged_run, AVERAGED)
    result = durable.read_json(run.result_file)
    kept = load_file(run.path / "model" / "model.safetensors")
    average = tensors_of(averaged_run, AVERAGED, result["best_step"], "average")
    assert all(torch.equal(kept[name], average[name]) for name in kept)
    problem = toy_problem(AVERAGED)
    problem.model.load_state_dict(average)
    problem.model.eval()
    assert problem.evaluate(problem.model) == dict(map(tuple, result["validations"]))[result["best_step"]]


@pytest.mark.parametrize("steps_per_run", [1, 5])
def test_an_averaged_training_in_pieces_ends_with_the_same_bytes(averaged_run, tmp_path, steps_per_run):
    toy_to_the_end(tmp_path, AVERAGED, max_steps_per_run=steps_per_run)
    assert what_must_be_equal(toy_directory(tmp_path, AVERAGED)) == what_must_be_equal(
        toy_directory(averaged_run, AVERAGED)
    )


def test_no_average_leaves_the_fingerprint_as_it_was():
    assert "ema_decay" not in UNAVERAGED.scientific()["budget"]
    assert AVERAGED.scientific()["budget"]["ema_decay"] == DECAY
