"""init_from takes the weights of another run and nothing else; what does not fit is named by its configuration."""

import pytest
import torch
from safetensors.torch import load_file

from storage.errors import BadInput
from tasks.training.initial import identity, load_weights
from tests.tasks.tiny import ToyConfig, ToyNetwork, toy_attempt, toy_directory

TOY = ToyConfig()


def read(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    root = tmp_path_factory.mktemp("source")
    toy_attempt(root, TOY, checkpoint_every_steps=5)
    return toy_directory(root, TOY).path


def test_every_weight_is_that_of_the_other_run(source):
    network = ToyNetwork(0.0)
    origin = load_weights(network, str(source), {}, read)
    there = read(source / "model")
    assert all(torch.equal(tensor, there[name]) for name, tensor in network.state_dict().items())
    assert (origin.stage, origin.fingerprint[:12]) == ("toy", source.name)


def test_weights_of_another_shape_are_refused_with_the_difference_of_the_two_configurations(source):
    network = ToyNetwork(0.0)
    network.inner = torch.nn.Linear(4, 8)
    ours = TOY.scientific() | {"examples": 99}
    with pytest.raises(BadInput) as caught:
        load_weights(network, str(source), ours, read)
    assert "do not fit this model" in str(caught.value)
    assert "examples: 45 there, 99 here" in str(caught.value)
    assert "torch.Size([16]) from checkpoint" in str(caught.value)


def test_missing_weights_are_refused_and_tied_ones_are_not_missing(source):
    network = ToyNetwork(0.0)
    network.tied = network.inner
    load_weights(network, str(source), {}, read)
    network.more = torch.nn.Linear(2, 2)
    with pytest.raises(BadInput, match=r"2 names differ, such as more\.bias"):
        load_weights(network, str(source), {}, read)


def test_a_run_that_is_not_finished_is_refused(tmp_path):
    toy_attempt(tmp_path, TOY, max_steps_per_run=5)
    with pytest.raises(BadInput, match="is not a finished run with a model"):
        identity(str(toy_directory(tmp_path, TOY).path))


def test_a_model_that_was_altered_is_refused_by_name(tmp_path):
    toy_attempt(tmp_path, TOY)
    path = toy_directory(tmp_path, TOY).path
    file = path / "model" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(BadInput, match=r"model/model\.safetensors"):
        load_weights(ToyNetwork(0.0), str(path), {}, read)


def test_a_folder_that_is_no_run_is_refused_before_anything(tmp_path):
    with pytest.raises(BadInput, match=r"is no run directory.*name a finished run directory"):
        identity(str(tmp_path))
