"""Networks as ONNX files: what a file says is what its network says, of any number of examples, wherever it is made."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from storage.errors import BadInput
from tasks.training.onnx_files import runtime, traced, write
from tests.conftest import REPOSITORY

EXAMPLES = torch.linspace(-3, 3, 20).reshape(5, 4)


def network(seed: int, between: type[nn.Module] = nn.GELU) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), between(), nn.Linear(3, 2)).eval()


@cache
def graph() -> Any:
    return traced(network(0), EXAMPLES, ("light", "place"))


def test_a_file_says_what_its_network_says_though_another_one_was_traced(tmp_path):
    ours, file = network(1), tmp_path / "a.onnx"
    told = write(graph(), ours, file, {"unit": "cm"}, [EXAMPLES, EXAMPLES[:1]])
    assert told.examples == 5 and len(told.largest_difference) == 2 and max(told.largest_difference) < 1e-6
    answers = torch.from_numpy(runtime(file)(EXAMPLES[:3].numpy()))
    assert torch.allclose(answers, ours(EXAMPLES[:3])) and not torch.allclose(answers, network(0)(EXAMPLES[:3]))
    model = onnx.load(file)
    assert {of.key: of.value for of in model.metadata_props} == {"unit": "cm"}
    assert [of.name for of in (*model.graph.input, *model.graph.output)] == ["light", "place"]


def test_a_file_names_no_place_of_this_machine(tmp_path):
    """Else an install elsewhere would write other bytes."""
    write(graph(), network(0), tmp_path / "a.onnx", {}, [EXAMPLES])
    content = (tmp_path / "a.onnx").read_bytes()
    assert not any(place.encode() in content for place in (str(REPOSITORY), str(Path(torch.__file__).parent), "test_"))


def test_a_file_of_another_computation_is_seen_in_the_difference(tmp_path):
    assert max(write(graph(), network(0, nn.ReLU), tmp_path / "a.onnx", {}, [EXAMPLES]).largest_difference) > 0.01
    more = nn.Sequential(*network(0), nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"no place for 3\.weight, 3\.bias"):
        write(graph(), more, tmp_path / "b.onnx", {}, [EXAMPLES])


def test_a_file_that_nothing_here_can_read_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(BadInput, match=r"read by onnxruntime, which is not installed: pip install .*\[export\]"):
        runtime(tmp_path / "a.onnx")
