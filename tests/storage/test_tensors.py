"""Tensor files of our own writer are what the safetensors library reads, bit for bit, with the digest that it says."""

from __future__ import annotations

import errno

import pytest
import torch
import xxhash
from safetensors import safe_open
from safetensors.torch import load_file

from storage import tensors
from storage.tensors import DTYPES, write_tensors
from tests.storage.runs import files_no_larger_than


def of_every_kind():
    bits = torch.arange(-60, 60)
    made = {name: bits.to(getattr(torch, name)).reshape(4, 30) for name in DTYPES}
    return made | {
        "scalar": torch.tensor(1.5),
        "empty": torch.zeros(0, 3),
        "odd": torch.tensor([True, False, True]),
        'NaN, infinities, -0 and "quotes" in a näme': torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
    }


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and tensors._bytes_of(a) == tensors._bytes_of(b)


def test_the_library_reads_every_kind_of_tensor_bit_for_bit(tmp_path):
    written = of_every_kind()
    write_tensors(tmp_path / "x.safetensors", written)
    read = load_file(tmp_path / "x.safetensors")
    assert read.keys() == written.keys()
    assert all(same_bits(read[name], tensor) for name, tensor in written.items())


@pytest.mark.parametrize("chunk", [1, 7, 64, 1 << 22])
def test_size_and_digest_are_those_of_the_file_however_it_is_cut(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(tensors, "CHUNK_BYTES", chunk)
    said = write_tensors(tmp_path / "x", of_every_kind())
    data = (tmp_path / "x").read_bytes()
    assert said == {"size": len(data), "xxh3_128": xxhash.xxh3_128(data).hexdigest()}


def test_equal_tensors_give_equal_bytes_in_whatever_order_they_come(tmp_path):
    made = of_every_kind()
    backwards = dict(reversed(made.items()))
    assert write_tensors(tmp_path / "x", made) == write_tensors(tmp_path / "y", backwards)


def test_every_tensor_begins_at_a_multiple_of_its_element_s_size(tmp_path):
    made = of_every_kind()
    write_tensors(tmp_path / "x", made)
    header = int.from_bytes((tmp_path / "x").read_bytes()[:8], "little")
    assert header % 8 == 0
    with safe_open(tmp_path / "x", "pt") as file:
        assert all(file.get_tensor(name).data_ptr() % made[name].element_size() == 0 for name in made)


def test_no_tensors_make_a_file_too(tmp_path):
    write_tensors(tmp_path / "x", {})
    assert load_file(tmp_path / "x") == {}


def test_a_full_disk_is_an_error_with_its_number(tmp_path):
    with files_no_larger_than(1000), pytest.raises(OSError, match="File too large") as caught:
        write_tensors(tmp_path / "x", {"weight": torch.zeros(1000)})
    assert caught.value.errno == errno.EFBIG
