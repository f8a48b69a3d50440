"""An exponential moving average of the weights: what is validated and kept, also after a continuation."""

import pytest
import torch
from safetensors.torch import load_file

from storage import durable
from tests.tasks.tiny import ToyConfig, toy_attempt, toy_directory, toy_problem, toy_to_the_end, what_must_be_equal

DECAY = 0.7
PLAIN = ToyConfig()
AVERAGED = ToyConfig(budget=PLAIN.budget.model_copy(update={"ema_decay": DECAY}))


def tensors(root, config, step, group):
    return load_file(toy_directory(root, config).checkpoints / str(step) / f"{group}.safetensors")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    root = tmp_path_factory.mktemp("averaged")
    toy_attempt(root, AVERAGED, checkpoint_every_steps=1, keep_checkpoints=50)
    return root


def test_the_average_is_the_recursion_over_the_weights_of_every_step(undisturbed):
    expected = tensors(undisturbed, AVERAGED, 1, "model")
    for step in range(2, 13):
        weights = tensors(undisturbed, AVERAGED, step, "model")
        expected = {name: DECAY * average + (1 - DECAY) * weights[name] for name, average in expected.items()}
    last = tensors(undisturbed, AVERAGED, 12, "average")
    for name, tensor in expected.items():
        assert torch.allclose(last[name], tensor, atol=1e-6), name
        assert not torch.allclose(tensors(undisturbed, AVERAGED, 12, "model")[name], tensor, atol=1e-4), name


def test_averaging_does_not_touch_the_training_itself(undisturbed, tmp_path):
    toy_attempt(tmp_path, PLAIN)
    plain, averaged = tensors(tmp_path, PLAIN, 12, "model"), tensors(undisturbed, AVERAGED, 12, "model")
    assert all(torch.equal(plain[name], averaged[name]) for name in plain)


def test_the_averaged_weights_are_validated_and_kept(undisturbed):
    run = toy_directory(undisturbed, AVERAGED)
    result = durable.read_json(run.result_file)
    kept = load_file(run.path / "model" / "model.safetensors")
    average = tensors(undisturbed, AVERAGED, result["best_step"], "average")
    assert all(torch.equal(kept[name], average[name]) for name in kept)
    problem = toy_problem(AVERAGED)
    problem.model.load_state_dict(average)
    problem.model.eval()
    assert problem.evaluate(problem.model) == dict(map(tuple, result["validations"]))[result["best_step"]]


@pytest.mark.parametrize("steps_per_run", [1, 5])
def test_an_averaged_training_in_pieces_ends_with_the_same_bytes(undisturbed, tmp_path, steps_per_run):
    toy_to_the_end(tmp_path, AVERAGED, max_steps_per_run=steps_per_run)
    assert what_must_be_equal(toy_directory(tmp_path, AVERAGED)) == what_must_be_equal(
        toy_directory(undisturbed, AVERAGED)
    )


def test_no_average_leaves_the_fingerprint_as_it_was():
    assert "ema_decay" not in PLAIN.scientific()["budget"]
    assert AVERAGED.scientific()["budget"]["ema_decay"] == DECAY
