"""The loop: real accumulation, continuation bit for bit, and stopping where numbers end."""

import json
import os
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from storage import durable, markers
from storage.rows import Rows
from tasks.training.__main__ import main as continue_from_run_directory
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule
from tests.conftest import REPOSITORY
from tests.tasks.tiny import (
    HOOKS,
    SEEN,
    ToyConfig,
    toy_attempt,
    toy_directory,
    toy_problem,
    toy_to_the_end,
    what_must_be_equal,
)

BUDGET = Budget(epochs=2.0, effective_batch_examples=8, learning_rate=0.05)
TOY = ToyConfig()
OFTEN_VALIDATED = ToyConfig(budget=BUDGET.model_copy(update={"validations_per_epoch": 6}))  # its best step is the 8th
STEPS = 12


def tensors_of(root, config, step):
    return load_file(toy_directory(root, config).checkpoints / str(step) / "model.safetensors")


# ------------------------------------------------------------------------------------------ accumulation


@pytest.mark.parametrize("step", [1, 6])  # 6 is the last window of the epoch, with 5 examples instead of 8
@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_a_step_is_the_same_however_its_window_is_cut(tmp_path, step, micro_batch):
    config = TOY.model_copy(update={"dropout": 0.0})
    roots = {size: tmp_path / str(size) for size in (micro_batch, 8)}
    for size, root in roots.items():
        toy_attempt(root, config, micro_batch_examples=size, max_steps_per_run=step)
    cut, whole = (tensors_of(root, config, step) for root in roots.values())
    for name, tensor in whole.items():
        assert torch.allclose(cut[name], tensor, atol=1e-6, rtol=1e-6), name


@pytest.mark.parametrize("micro_batch", [1, 2, 4, 8])
def test_an_epoch_is_what_adamw_makes_of_each_window_s_mean_loss(tmp_path, micro_batch):
    """An epoch and one more step, by hand; the sixth window holds 5 examples. Clipping would hide a wrong scale."""
    config = TOY.model_copy(update={"dropout": 0.0, "budget": BUDGET.model_copy(update={"max_gradient_norm": 1e9})})
    toy_attempt(tmp_path, config, micro_batch_examples=micro_batch, max_steps_per_run=7)
    read = [example for some in SEEN for example in some]
    problem, plan = toy_problem(config), Schedule(config.budget, config.examples)
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in problem.model.parameters() if p.ndim == 2], "weight_decay": 0.01},
            {"params": [p for p in problem.model.parameters() if p.ndim == 1], "weight_decay": 0.0},
        ]
    )
    for step, (first, end) in enumerate([*((i, i + 8) for i in range(0, 40, 8)), (40, 45), (45, 53)], start=1):
        for group in optimizer.param_groups:
            group["lr"] = plan.learning_rate(step)
        optimizer.zero_grad()
        problem.losses(problem.model, problem.batch(np.array(read[first:end]), 0)).mean().backward()
        optimizer.step()
    ours = tensors_of(tmp_path, config, 7)
    for name, tensor in problem.model.state_dict().items():
        assert torch.allclose(ours[name], tensor, atol=1e-6, rtol=1e-5), name


def test_each_example_is_read_once_in_an_epoch_and_in_another_order_in_the_next(tmp_path):
    toy_attempt(tmp_path, TOY)
    read = [example for micro_batch in SEEN for example in micro_batch]
    assert len(SEEN) == 2 * (5 * 2 + 2)  # five windows of 4 + 4 and one of 4 + 1
    assert sorted(read[:45]) == sorted(read[45:]) == list(range(45))
    assert read[:45] != read[45:]


def test_no_example_is_put_in_order_twice(tmp_path, monkeypatch):
    """Seen: a second time for weights that no example had, and window by window: half a millisecond of each step."""
    from tests.tasks import tiny

    asked = []

    def counted(config):
        problem = toy_problem(config)
        order = problem.order
        problem.order = lambda *place: asked.append(place) or order(*place)
        return problem

    monkeypatch.setattr(tiny, "toy_problem", counted)
    toy_attempt(tmp_path, TOY)
    assert [len(place[2]) for place in asked] == [TOY.examples] * 2


# ------------------------------------------------------------------------------------------ continuation


@pytest.mark.parametrize("steps_per_run", [1, 2, 3, 5, 7, 11])
def test_a_training_in_pieces_ends_with_the_same_bytes(tmp_path, undisturbed, steps_per_run):
    outcomes = toy_to_the_end(tmp_path, TOY, max_steps_per_run=steps_per_run)
    assert len(outcomes) == -(-STEPS // steps_per_run)
    assert {outcome.exit_code for outcome in outcomes[:-1]} == {75}
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


def test_checkpoints_taken_because_time_passed_change_nothing(tmp_path, undisturbed):
    toy_attempt(tmp_path, TOY, checkpoint_every_seconds=1e-9, checkpoint_stall_share=1.0, keep_checkpoints=50)
    run = toy_directory(tmp_path, TOY)
    assert {int(folder.name) for folder in run.checkpoints.iterdir()} - {6, 12}  # those are of the validations
    assert what_must_be_equal(run) == undisturbed


def test_checkpoints_every_so_many_steps(tmp_path, undisturbed):
    toy_attempt(tmp_path, TOY, checkpoint_every_steps=5, keep_checkpoints=50)
    run = toy_directory(tmp_path, TOY)
    assert {int(folder.name) for folder in run.checkpoints.iterdir()} == {5, 6, 10, 12}
    assert what_must_be_equal(run) == undisturbed


@pytest.mark.parametrize(("at", "calls"), [*(("batch", calls) for calls in (1, 2, 9, 13, 23)), ("evaluate", 1)])
def test_a_training_that_dies_ends_with_the_same_bytes(tmp_path, undisturbed, at, calls):
    """Between two micro-batches, and in the validation of an epoch whose last step is done."""
    left = iter(range(calls - 1, -1, -1))

    def die():
        if next(left) == 0:
            HOOKS.clear()
            raise RuntimeError("the node died")

    HOOKS[at] = die
    assert toy_attempt(tmp_path, TOY, checkpoint_every_steps=2).end_state == "crashed"
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


def test_a_good_checkpoint_is_never_pruned_in_favour_of_a_damaged_later_one(tmp_path, undisturbed):
    toy_attempt(tmp_path, TOY, checkpoint_every_steps=1, max_steps_per_run=5, keep_checkpoints=4)
    checkpoints = toy_directory(tmp_path, TOY).checkpoints
    for step in (4, 5):
        (checkpoints / str(step) / "model.safetensors").write_bytes(b"torn")
    toy_attempt(tmp_path, TOY, checkpoint_every_steps=1, max_steps_per_run=1, keep_checkpoints=1)
    toy_attempt(tmp_path, TOY, max_steps_per_run=1, keep_checkpoints=1)
    run = toy_directory(tmp_path, TOY)
    assert "checkpoint 5 is passed over" in (run.attempts / "0002.log").read_text()
    assert "goes on from the checkpoint of step 4" in (run.attempts / "0003.log").read_text()
    toy_to_the_end(tmp_path, TOY)
    assert what_must_be_equal(run) == undisturbed


def test_a_full_disk_while_it_restores_is_reported_as_such_and_not_as_damage(tmp_path, undisturbed, monkeypatch):
    toy_attempt(tmp_path, TOY, max_steps_per_run=7)
    cut_back = Rows.cut_back

    def fails(self, position):
        raise OSError(28, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr(Rows, "cut_back", fails)
    outcome = toy_attempt(tmp_path, TOY)
    assert (outcome.end_state, outcome.diagnosis.category) == ("crashed", "disk full")
    monkeypatch.setattr(Rows, "cut_back", cut_back)
    toy_attempt(tmp_path, TOY)
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


def test_a_damaged_best_checkpoint_begins_nothing_anew_unasked(tmp_path):
    toy_attempt(tmp_path / "undisturbed", OFTEN_VALIDATED)
    expected = what_must_be_equal(toy_directory(tmp_path / "undisturbed", OFTEN_VALIDATED))
    best = json.loads(expected["result"])["best_step"]
    assert best < 11

    toy_attempt(tmp_path, OFTEN_VALIDATED, max_steps_per_run=11)
    run = toy_directory(tmp_path, OFTEN_VALIDATED)
    whole = (run.checkpoints / str(best) / "model.safetensors").read_bytes()
    (run.checkpoints / str(best) / "model.safetensors").write_bytes(b"torn")
    refused = toy_attempt(tmp_path, OFTEN_VALIDATED)
    assert refused.end_state == "check_failed" and f"/{best}/model.safetensors is torn" in refused.message
    (run.checkpoints / str(best) / "model.safetensors").write_bytes(whole)
    assert toy_attempt(tmp_path, OFTEN_VALIDATED).end_state == "finished"
    assert what_must_be_equal(run) == expected


def test_metric_rows_beyond_the_checkpoint_are_cut_back(tmp_path, undisturbed):
    toy_attempt(tmp_path, TOY, max_steps_per_run=7)
    run = toy_directory(tmp_path, TOY)
    with run.metrics_file.open("a") as file:
        file.write('{"step": 8, "train_loss": 1.0}\n{"step": 9, "tra')
    toy_attempt(tmp_path, TOY)
    assert what_must_be_equal(run) == undisturbed


def test_metrics_altered_before_the_checkpoint_begin_nothing_anew_unasked(tmp_path, undisturbed):
    toy_attempt(tmp_path, TOY, max_steps_per_run=7)
    run = toy_directory(tmp_path, TOY)
    whole, kept = run.metrics_file.read_bytes(), sorted(run.checkpoints.iterdir())
    run.metrics_file.write_bytes(b" " + whole[1:])
    refused = toy_attempt(tmp_path, TOY)
    assert refused.end_state == "check_failed" and "metrics.jsonl has other rows before byte" in refused.message
    assert sorted(run.checkpoints.iterdir()) == kept
    run.metrics_file.write_bytes(whole)
    toy_attempt(tmp_path, TOY)
    assert what_must_be_equal(run) == undisturbed


def test_the_run_directory_alone_is_enough_to_go_on(tmp_path, undisturbed):
    toy_attempt(tmp_path, TOY, max_steps_per_run=7)
    run = toy_directory(tmp_path, TOY)
    codes = [continue_from_run_directory(["--run-dir", str(run.path), "--own", str(REPOSITORY)]) for _ in range(2)]
    assert codes == [0, 0]  # 5 steps are left, and a finished run says so
    assert what_must_be_equal(run) == undisturbed


# ----------------------------------------------------------------------------------- best and validation


def test_the_best_step_is_the_lowest_validation_loss_and_its_weights_are_kept(tmp_path):
    toy_attempt(tmp_path, OFTEN_VALIDATED, keep_checkpoints=1)
    run = toy_directory(tmp_path, OFTEN_VALIDATED)
    result = durable.read_json(run.result_file)
    losses = dict(map(tuple, result["validations"]))
    assert sorted(losses) == list(range(1, 13))
    assert losses[result["best_step"]] == min(losses.values()) < losses[12]
    assert {int(folder.name) for folder in run.checkpoints.iterdir()} == {result["best_step"], 12}
    best = (run.checkpoints / str(result["best_step"]) / "model.safetensors").read_bytes()
    assert (run.path / "model" / "model.safetensors").read_bytes() == best


def test_of_equal_validation_losses_the_earlier_wins(tmp_path):
    still = TOY.model_copy(update={"budget": BUDGET.model_copy(update={"learning_rate": 1e-30, "weight_decay": 0.0})})
    toy_attempt(tmp_path, still)
    result = durable.read_json(toy_directory(tmp_path, still).result_file)
    assert result["validations"][0][1] == result["validations"][1][1]
    assert result["best_step"] == 6


# --------------------------------------------------------------------------------------- numerical ends


@pytest.mark.parametrize("what", ["poisoned_loss", "poisoned_gradient"])
def test_the_first_number_that_is_not_finite_stops_and_keeps_the_checkpoint(tmp_path, what):
    toy_attempt(tmp_path / "order", TOY, max_steps_per_run=3)
    poisoned = SEEN[4][0]  # in the first half of step 3
    config = TOY.model_copy(update={what: poisoned})
    outcome = toy_attempt(tmp_path, config, checkpoint_every_steps=1)
    run = toy_directory(tmp_path, config)

    assert (outcome.end_state, outcome.exit_code) == ("numerical_failure", 1)
    named = {"poisoned_loss": "the loss", "poisoned_gradient": "the gradient of outer.weight"}[what]
    assert outcome.message.startswith(
        f"{named} is not finite at step 3, batch examples [{poisoned}] (1 of a batch of 8)"
    )
    assert not markers.check(run, {}).present
    assert {folder.name for folder in run.checkpoints.iterdir()} == {"1", "2"}
    assert all(tensor.isfinite().all() for tensor in tensors_of(tmp_path, config, 2).values())


def test_a_validation_loss_that_is_not_finite_stops(tmp_path, monkeypatch):
    from tests.tasks import tiny

    made = tiny.toy_problem

    def with_bad_validation(config):
        problem = made(config)
        problem.evaluate = lambda _: float("nan")
        return problem

    monkeypatch.setattr(tiny, "toy_problem", with_bad_validation)
    outcome = toy_attempt(tmp_path, TOY)
    assert outcome.end_state == "numerical_failure"
    assert "the validation loss is not finite at step 6" in outcome.message


# ------------------------------------------------------------------------------------------ being stopped


@pytest.mark.parametrize(
    ("number", "end_state", "code"),
    [(signal.SIGTERM, "sigterm", 75), (signal.SIGUSR1, "out_of_time", 75), (signal.SIGINT, "interrupted", 130)],
)
def test_a_signal_inside_a_window_stops_at_the_next_step_boundary(tmp_path, undisturbed, number, end_state, code):
    HOOKS["batch"] = lambda: os.kill(os.getpid(), number) if len(SEEN) == 7 else None  # the first half of step 4
    outcome = toy_attempt(tmp_path, TOY)
    HOOKS.clear()
    run = toy_directory(tmp_path, TOY)
    assert (outcome.end_state, outcome.exit_code) == (end_state, code)
    assert [folder.name for folder in run.checkpoints.iterdir()] == ["4"]
    assert durable.read_json(run.checkpoints / "4" / "state.json")["position"]["step"] == 4
    assert not markers.check(run, {}).present
    assert durable.read_json(run.attempts / "0001.json")["exit_code"] == code

    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert what_must_be_equal(run) == undisturbed


@pytest.mark.parametrize("at", ["batch", "evaluate"])
def test_a_signal_in_the_last_step_ends_unfinished_and_goes_on_to_the_same_bytes(tmp_path, undisturbed, at):
    HOOKS[at] = lambda: os.kill(os.getpid(), signal.SIGTERM) if len(SEEN) == 24 else None
    assert toy_attempt(tmp_path, TOY).end_state == "sigterm"
    HOOKS.clear()
    assert toy_attempt(tmp_path, TOY).end_state == "finished"
    assert len(SEEN) == 24  # nothing was trained twice
    assert what_must_be_equal(toy_directory(tmp_path, TOY)) == undisturbed


# ---------------------------------------------------------------------------------------------- numerics


def test_other_numerics_are_refused_by_name_and_nothing_is_done(tmp_path):
    toy_attempt(tmp_path, TOY, max_steps_per_run=7)
    SEEN.clear()
    outcome = toy_attempt(tmp_path, TOY, micro_batch_examples=8)
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert "micro_batch_examples was 4, is 8" in outcome.message
    assert "allow_numerics_change" in outcome.message
    assert SEEN == []


def test_other_numerics_that_are_allowed_stand_in_the_result(tmp_path):
    toy_attempt(tmp_path, TOY, max_steps_per_run=7)
    changed = {"micro_batch_examples": 8, "allow_numerics_change": True}
    assert toy_attempt(tmp_path, TOY, **changed, max_steps_per_run=1).exit_code == 75
    assert toy_attempt(tmp_path, TOY, **changed).end_state == "finished"
    run = toy_directory(tmp_path, TOY)
    assert [now["micro_batch_examples"] for now in durable.read_json(run.result_file)["numerics_changes"]] == [8]
    stage = durable.read_json(run.stage_file)
    assert stage["numerics"]["micro_batch_examples"] == 4


def test_an_undisturbed_result_says_nothing_of_numerics(undisturbed):
    assert "numerics_changes" not in json.loads(undisturbed["result"])


# --------------------------------------------------------------------------------------------- precision


def test_bf16_is_autocast_over_fp32_weights_and_optimizer(tmp_path):
    config = TOY.model_copy(update={"budget": BUDGET.model_copy(update={"precision": "bf16"})})
    toy_to_the_end(tmp_path / "bf16", config, max_steps_per_run=5)
    toy_attempt(tmp_path / "in one piece", config)
    pieces, whole = (what_must_be_equal(toy_directory(tmp_path / name, config)) for name in ("bf16", "in one piece"))
    assert pieces == whole
    toy_attempt(tmp_path / "fp32", TOY)
    run = toy_directory(tmp_path / "bf16", config)
    for group in ("model", "optimizer"):
        for name, tensor in load_file(run.checkpoints / "12" / f"{group}.safetensors").items():
            assert tensor.dtype == torch.float32, name
    half, full = tensors_of(tmp_path / "bf16", config, 12), tensors_of(tmp_path / "fp32", TOY, 12)
    assert any(not torch.equal(half[name], full[name]) for name in full)


def test_gradients_are_clipped_to_their_global_norm(tmp_path):
    """With clipping to almost nothing AdamW still steps, but its second moments show the clipped gradient."""
    small = TOY.model_copy(update={"budget": BUDGET.model_copy(update={"max_gradient_norm": 1e-3})})
    toy_attempt(tmp_path, small, max_steps_per_run=1)
    moments = load_file(toy_directory(tmp_path, small).checkpoints / "1" / "optimizer.safetensors")
    squared = sum(tensor.sum().item() for name, tensor in moments.items() if name.endswith("exp_avg_sq"))
    assert squared == pytest.approx((1 - 0.999) * 1e-6, rel=1e-3)


def test_a_norm_beyond_fp32_of_finite_gradients_is_clipped_and_the_training_goes_on(tmp_path, monkeypatch):
    """Seen: three icecube trials ended as "not finite" at a norm of 1e25, whose square alone is too large for fp32."""
    from tests.tasks import tiny

    def second_moments(scale):
        root, made = tmp_path / str(scale), toy_problem

        def scaled(config):
            problem = made(config)
            losses = problem.losses
            problem.losses = lambda model, batch: scale * losses(model, batch)
            return problem

        monkeypatch.setattr(tiny, "toy_problem", scaled)
        clipped = TOY.model_copy(update={"budget": BUDGET.model_copy(update={"max_gradient_norm": 1e-3})})
        assert toy_attempt(root, clipped, max_steps_per_run=1).end_state == "out_of_time"
        kept = load_file(toy_directory(root, clipped).checkpoints / "1" / "optimizer.safetensors")
        return {name: tensor for name, tensor in kept.items() if name.endswith("exp_avg_sq")}

    torch.testing.assert_close(second_moments(1e25), second_moments(1.0), rtol=1e-4, atol=1e-14)
