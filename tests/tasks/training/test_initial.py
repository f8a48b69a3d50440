"""What a training begins with: the weights of another run, or a part of a model; what does not fit is named."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from storage.errors import BadInput
from tasks.training.initial import identity, load_part, load_weights
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


REQUIRED = {"task": "pretraining", "normaliser_digest": "d1"}


class Net(nn.Module):
    def __init__(self, width: int = 3, outputs: int = 2) -> None:
        super().__init__()
        self.encoder = nn.Linear(4, width)
        self.head = nn.Linear(width, outputs)


def kept(folder: Path, model: nn.Module, **config: object) -> Path:
    save_file(model.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(REQUIRED | config))
    return folder


def test_the_part_is_taken_and_the_rest_stays_as_it_was(tmp_path):
    theirs, ours = Net(outputs=7), Net()
    head = ours.head.weight.clone()
    taken = load_part(ours, kept(tmp_path, theirs), "encoder.", REQUIRED)
    assert torch.equal(ours.encoder.weight, theirs.encoder.weight) and torch.equal(ours.head.weight, head)
    assert taken.taken == ["encoder.weight", "encoder.bias"] and taken.fresh == ["head.weight", "head.bias"]
    assert taken.refused == ["head.bias", "head.weight"]


def not_finite() -> nn.Module:
    model = Net()
    torch.nn.init.constant_(model.encoder.bias, torch.nan)
    return model


@pytest.mark.parametrize(
    ("model", "config", "said"),
    [
        (Net(width=5), {}, r"encoder\.weight is float32 \[3, 4\] here, and float32 \[5, 4\] in"),
        (nn.Sequential(), {}, r"encoder\.weight is float32 \[3, 4\] here, and missing in"),
        (Net().double(), {}, r"encoder\.weight is float32 \[3, 4\] here, and float64 \[3, 4\] in"),
        (not_finite(), {}, r"encoder\.bias is not finite in"),
        (Net(), {"normaliser_digest": "d2"}, "has the normaliser_digest d2, and d1 is asked for"),
        (Net(), {"task": "regression"}, "has the task regression, and pretraining is asked for"),
    ],
    ids=["another width", "another model", "other numbers", "not finite", "another normaliser", "another task"],
)
def test_what_does_not_fit_is_refused_by_name(model, config, said, tmp_path):
    ours = Net()
    before = {name: value.clone() for name, value in ours.state_dict().items()}
    with pytest.raises(BadInput, match=said):
        load_part(ours, kept(tmp_path, model, **config), "encoder.", REQUIRED)
    assert all(torch.equal(value, before[name]) for name, value in ours.state_dict().items())


def test_a_part_that_no_tensor_is_of_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"no tensor .* begins with encodr\..*did you mean 'encoder\.'"):
        load_part(Net(), kept(tmp_path, Net()), "encodr.", REQUIRED)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_without_a_kept_model_is_refused_by_name(name, tmp_path):
    (kept(tmp_path, Net()) / name).unlink()
    with pytest.raises(BadInput, match=re.escape(name)):
        load_part(Net(), tmp_path, "encoder.", REQUIRED)
