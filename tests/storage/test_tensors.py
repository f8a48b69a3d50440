"""Tensor files of our own writer are what the safetensors library reads, bit for bit, with the digest that it says."""

import errno
import fcntl
import os

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


@pytest.mark.parametrize("buffer", [1, 7, 64, 4096, 3 * 4096, 1 << 22])
@pytest.mark.parametrize("disk", ["direct", "refuses the flag", "refuses the write"])
def test_size_and_digest_are_those_of_the_file_however_it_is_cut_and_written(tmp_path, monkeypatch, buffer, disk):
    """Larger than any of these buffers but the last, and no multiple of a block."""
    made = of_every_kind() | {"large": torch.arange(12_345)}
    whole = write_tensors(tmp_path / "whole", made)
    monkeypatch.setattr(tensors, "BUFFER_BYTES", buffer)
    write, calls = os.pwrite, []

    def refuse(*given: object) -> int:
        raise OSError(errno.EINVAL, "Invalid argument")

    def refuse_direct(file: int, data: memoryview, offset: int) -> int:
        calls.append(bool(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT))
        return refuse() if calls[-1] else write(file, data, offset)

    if disk == "refuses the flag":
        monkeypatch.setattr(tensors._Uncached, "_set_direct", refuse)
    elif disk == "refuses the write":
        monkeypatch.setattr(os, "pwrite", refuse_direct)
    described = write_tensors(tmp_path / "x", made)
    data = (tmp_path / "x").read_bytes()
    assert described == whole == {"size": len(data), "xxh3_128": xxhash.xxh3_128(data).hexdigest()}
    assert data == (tmp_path / "whole").read_bytes() and calls.count(True) <= 1


@pytest.mark.parametrize("most", [1, 1000, 4096, 5000, 10**9])
def test_short_writes_lose_nothing(tmp_path, monkeypatch, most):
    made = of_every_kind() | {"large": torch.arange(12_345)}
    whole = write_tensors(tmp_path / "whole", made)
    write, short = os.pwrite, []

    def some(file: int, data: memoryview, offset: int) -> int:
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_DIRECT:
            count = write(file, data[: max(4096, most // 4096 * 4096)], offset)
            short.append(min(count, most) if not short else count)  # as if it had been cut in a block
            return short[-1]
        return write(file, data[:most], offset)

    monkeypatch.setattr(os, "pwrite", some)
    assert write_tensors(tmp_path / "x", made) == whole
    assert (tmp_path / "x").read_bytes() == (tmp_path / "whole").read_bytes()


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
