"""A training begins with a part of a model; what does not fit is named."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from storage.errors import BadInput
from tasks.training.initial import load_part

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
