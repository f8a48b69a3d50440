"""D4, D5, D6, D7, D8, D21, D31: what a continuation lost."""

from __future__ import annotations

import os
import re
import signal
import tempfile
import tokenize
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from storage import checkpoints as checkpoint_storage
from storage import durable
from storage.checkpoints import Checkpoints
from storage.tensors import write_tensors
from tasks.stage.execution import Execution
from tasks.training.budget import Budget
from tasks.training.schedule import Schedule
from tests.tasks.tiny import (
    HOOKS,
    SEEN,
    ToyConfig,
    finished_study,
    stage_run,
    toy_attempt,
    toy_directory,
    toy_problem,
    toy_to_the_end,
    what_must_be_equal,
)

TOY = ToyConfig()  # 45 examples in windows of 8: 6 steps an epoch, 2 epochs


@pytest.fixture(autouse=True)
def _no_hooks():
    HOOKS.clear()
    SEEN.clear()
    yield
    HOOKS.clear()


def examples_of_our_run(root: Path, stop_after: int | None) -> list[int]:
    """Every example that is trained on in the new folder `root`, in order, with a stop after so many steps."""
    SEEN.clear()
    if stop_after:
        assert toy_attempt(root, TOY, max_steps_per_run=stop_after).exit_code == 75
    toy_to_the_end(root, TOY)
    return [example for micro_batch in SEEN for example in micro_batch]


def test_d04_a_resumed_epoch_that_begins_with_another_permutation(tmp_path):
    """The loader's generator was made anew: epoch 1 went on with epoch 0's order and skipped the wrong batches."""

    def ours(stop_after: int | None) -> list[int]:
        return examples_of_our_run(Path(tempfile.mkdtemp(dir=tmp_path)), stop_after)

    def same_after_a_stop_in_the_second_epoch(train) -> bool:
        return train(9) == train(None)

    assert same_after_a_stop_in_the_second_epoch(ours)
    assert sorted(ours(9)[45:]) == list(range(45))  # each example of the second epoch once


def test_d04_a_checkpoint_without_the_state_of_the_generators(tmp_path):
    """Dropout after a stop drew other masks, so that a stopped run was another run."""

    def ours(stop_after: int | None) -> bytes:
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        examples_of_our_run(root, stop_after)
        return what_must_be_equal(toy_directory(root, TOY))["checkpoint/model.safetensors"]

    assert TOY.dropout > 0
    assert ours(9) == ours(None)


def test_d04_the_epoch_s_training_loss_covered_only_the_resumed_tail(tmp_path):
    def ours(stop_after: int | None) -> bytes:
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        examples_of_our_run(root, stop_after)
        return toy_directory(root, TOY).metrics_file.read_bytes()

    assert ours(9) == ours(None)
    assert b"train_loss" in ours(9)


def test_d05_a_stop_at_the_end_of_an_epoch_that_skips_its_validation(tmp_path):
    """A position at the end of the loader counted the epoch as done: no validation, no best model."""

    def ours(stop_after: int | None) -> list[int]:
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        if stop_after:  # dies in the validation itself, when the epoch's last step is done

            def die() -> None:
                HOOKS.clear()
                raise RuntimeError("the node died")

            HOOKS["evaluate"] = die
            assert toy_attempt(root, TOY, checkpoint_every_steps=1).end_state == "crashed"
        toy_to_the_end(root, TOY)
        return [step for step, _ in durable.read_json(toy_directory(root, TOY).result_file)["validations"]]

    def every_epoch_is_validated(train) -> bool:
        return train(6) == train(None) == [6, 12]

    assert every_epoch_is_validated(ours)


def test_d05_the_best_model_after_a_stop_at_the_last_step(tmp_path):
    toy_attempt(tmp_path / "whole", TOY)
    HOOKS["evaluate"] = lambda: os.kill(os.getpid(), signal.SIGTERM) if len(SEEN) == 48 else None
    assert toy_attempt(tmp_path / "stopped", TOY).exit_code == 75
    HOOKS.clear()
    assert toy_attempt(tmp_path / "stopped", TOY).exit_code == 0
    whole, stopped = (what_must_be_equal(toy_directory(tmp_path / name, TOY)) for name in ("whole", "stopped"))
    assert stopped == whole


def test_d06_the_last_window_is_divided_by_what_a_full_one_holds(tmp_path):
    """45 examples in windows of 8 leave 5: their gradient was divided by 8."""
    config = ToyConfig(examples=5, dropout=0.0, budget=unclipped())
    problem = toy_problem(config)
    weight = problem.model.inner.weight

    def gradient(losses: torch.Tensor) -> float:
        (found,) = torch.autograd.grad(losses, weight)
        return found.flatten()[0].item()

    def mean_loss(indices: np.ndarray) -> torch.Tensor:
        return problem.losses(problem.model, problem.batch(indices, 0)).mean()

    def ours() -> float:
        """AdamW's first moment after one step from zero is a tenth of the window's gradient."""
        toy_attempt(tmp_path, config, max_steps_per_run=1, micro_batch_examples=1)
        kept = toy_directory(tmp_path, config).checkpoints / "1" / "optimizer.safetensors"
        return load_file(kept)["0.exp_avg"].flatten()[0].item() / 0.1

    def is_the_mean_over_the_window(found: float) -> bool:
        return found == pytest.approx(gradient(mean_loss(np.arange(5))), rel=1e-5)

    assert is_the_mean_over_the_window(ours())


def unclipped() -> Budget:
    return Budget(epochs=2.0, effective_batch_examples=8, learning_rate=0.05, max_gradient_norm=1e9)


def test_d06_a_save_inside_a_window_that_drops_accumulated_gradients(tmp_path):

    def ours(stop_after_micro_batch: int | None) -> bytes:
        SEEN.clear()
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        if stop_after_micro_batch:
            stop = stop_after_micro_batch
            HOOKS["batch"] = lambda: os.kill(os.getpid(), signal.SIGTERM) if len(SEEN) == stop else None
            assert toy_attempt(root, TOY).exit_code == 75
            HOOKS.clear()
        toy_to_the_end(root, TOY)
        return what_must_be_equal(toy_directory(root, TOY))["checkpoint/model.safetensors"]

    def nothing_is_lost(train) -> bool:
        return train(7) == train(None)

    assert nothing_is_lost(ours)


def test_d07_training_time_of_the_last_run_and_samples_that_count_validation(tmp_path):
    """training_time was overwritten by each resubmission; training_samples counted the validation documents."""

    def ours(steps_per_run: int | None) -> bytes:
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        toy_to_the_end(root, TOY, max_steps_per_run=steps_per_run)
        return toy_directory(root, TOY).result_file.read_bytes()

    assert ours(5) == ours(None)


def test_d07_no_result_holds_what_a_clock_said_and_timing_is_outside_every_digest():
    study = finished_study()
    clock = re.compile(r"seconds|hour|minute|elapsed|_time\b|timestamp|started|duration", re.IGNORECASE)
    for stage in study.handles:
        marker = durable.read_json(study.path(stage) / "COMPLETE.json")
        assert "timing.jsonl" not in marker["outputs"] and "progress.json" not in marker["outputs"]
        for name in ("result.json", "final_results.json"):
            if (study.path(stage) / name).exists():
                keys = set(re.findall(r'"([^"]+)":', (study.path(stage) / name).read_text()))
                allowed = {"checkpoint_every_seconds"}  # the configuration, which is not measured
                assert not {key for key in keys if clock.search(key)} - allowed, (stage, name)
    assert (study.path("train-baseline") / "timing.jsonl").is_file()


def test_d07_tokens_trained_count_train_blocks_alone():
    study = finished_study()
    training = study.result("train-baseline")["training"]
    packed = study.result("setup")["packed"]
    schedule = Schedule(Budget(**training["budget"]), packed["train"]["blocks"])
    assert training["steps"] == schedule.total_steps
    assert training["tokens_trained"] == 16 * training["steps"] * (16 - 1)  # full windows only, in a tenth of an epoch


def test_d08_a_checkpoint_that_is_written_in_place(tmp_path, monkeypatch):
    """torch.save over the file that is the only good one; a death in the middle leaves none."""

    class Died(BaseException):
        pass

    run = stage_run(tmp_path / "ours")
    store = Checkpoints(run.run.checkpoints, run.identity, run.lock)
    store.save(5, {"model": {"w": torch.ones(50)}}, {"epoch": 1})

    def dies(file, tensors):
        write_tensors(file, tensors)
        file.write_bytes(file.read_bytes()[:60])
        raise Died

    monkeypatch.setattr(checkpoint_storage, "write_tensors", dies)
    for step in (5, 6):  # over the same step, and beside it
        with pytest.raises(Died):
            store.save(step, {"model": {"w": torch.zeros(50)}}, {"epoch": 2})
        kept = store.newest_verified()
        assert kept.step == 5 and torch.equal(kept.tensors("model")["w"], torch.ones(50))


def test_d08_a_damaged_checkpoint_without_a_fallback(tmp_path):
    """The newest file was loaded whatever it held; the documents claimed a fallback that was not there."""

    toy_attempt(tmp_path / "whole", TOY)
    toy_attempt(tmp_path / "torn", TOY, max_steps_per_run=8, checkpoint_every_steps=1)
    torn = toy_directory(tmp_path / "torn", TOY)
    weights = torn.checkpoints / "8" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:50])
    assert toy_attempt(tmp_path / "torn", TOY).exit_code == 0
    assert what_must_be_equal(torn) == what_must_be_equal(toy_directory(tmp_path / "whole", TOY))


def test_d08_nothing_that_executes_code_is_loaded_from_a_run_directory(tmp_path):
    """torch.load(weights_only=False) stood everywhere."""
    loads = re.compile(
        r"torch\.load|torch\.save|\bpickle\b|joblib|allow_pickle=True|yaml\.(unsafe_)?load\(.*Loader=yaml"
    )
    for old in ("state = torch.load(path, weights_only=False)", "import pickle", "yaml.load(text, Loader=yaml.Loader)"):
        (tmp_path / "old.py").write_text(f"{old}\n")
        assert loads.search(code_of(tmp_path / "old.py"))
    root = Path(checkpoint_storage.__file__).parent.parent
    sources = [
        file for folder in ("storage", "tasks", "flows", "deployments") for file in (root / folder).rglob("*.py")
    ]
    assert len(sources) > 30
    assert [str(file) for file in sources if loads.search(code_of(file))] == []


def code_of(file: Path) -> str:
    """Without comments and texts, which may say what is refused."""
    with file.open("rb") as lines:
        tokens = [(tokenize.tok_name[token.type], token.string) for token in tokenize.tokenize(lines.readline)]
    code = " ".join(text for name, text in tokens if name != "COMMENT" and "STRING" not in name)
    return code.replace(" . ", ".").replace(" (", "(").replace(" = ", "=")


def test_d21_each_continuation_seeds_anew_and_repeats_the_first_epoch_s_order(tmp_path):
    """One epoch a job: every epoch of the monotonic arm had the same order, those of the baseline had not."""

    def ours(one_epoch_a_job: bool) -> list[list[int]]:
        SEEN.clear()
        toy_to_the_end(Path(tempfile.mkdtemp(dir=tmp_path)), TOY, max_epochs_per_run=1.0 if one_epoch_a_job else None)
        read = [example for micro_batch in SEEN for example in micro_batch]
        return [read[:45], read[45:]]

    def orders_do_not_depend_on_the_jobs(train) -> bool:
        first, second = train(True)
        return first != second and train(True) == train(False)

    assert orders_do_not_depend_on_the_jobs(ours)


def test_d31_half_an_epoch_a_run(tmp_path, capsys):
    """The documents said --max_epochs_per_run 0.5; the option was an integer."""
    import argparse

    old = argparse.ArgumentParser()
    old.add_argument("--max_epochs_per_run", type=int)
    with pytest.raises(SystemExit):
        old.parse_args(["--max_epochs_per_run", "0.5"])
    capsys.readouterr()

    assert Execution(max_epochs_per_run=0.5).max_epochs_per_run == 0.5
    outcomes = toy_to_the_end(tmp_path, TOY, max_epochs_per_run=0.5)
    assert [outcome.exit_code for outcome in outcomes] == [75, 75, 75, 0]
