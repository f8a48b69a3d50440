"""Packing loses nothing but the counted rest, and the file is read back as it was written."""

import hashlib

import numpy as np
import pytest
import torch

from storage.errors import BadInput
from tasks.language import blocks
from tasks.language.blocks import Blocks, pack

LENGTH = 8


def documents(count: int = 50, largest: int = 300) -> list[list[int]]:
    chance = np.random.default_rng(3)
    return [chance.integers(1, largest, size=chance.integers(0, 30)).tolist() for _ in range(count)]


def packed(folder, texts, vocabulary_size=300, split="train"):
    return pack(folder, split, texts, sequence_length=LENGTH, vocabulary_size=vocabulary_size, end_of_text=0)


@pytest.mark.parametrize("buffer_tokens", [1, 50, 1 << 20])
@pytest.mark.parametrize(("vocabulary_size", "dtype"), [(300, "uint16"), (65536, "uint16"), (65537, "uint32")])
def test_round_trip(tmp_path, monkeypatch, buffer_tokens, vocabulary_size, dtype):
    monkeypatch.setattr(blocks, "BUFFER_TOKENS", buffer_tokens)
    texts = [*documents(), [vocabulary_size - 1] * LENGTH, []]
    stream = [token for text in texts for token in (*text, 0)]
    description = packed(tmp_path, iter(texts), vocabulary_size)

    read = Blocks(tmp_path, "train")
    everything = read[np.arange(len(read))]
    assert everything.dtype == torch.int64 and everything.shape == (len(stream) // LENGTH, LENGTH)
    assert everything.flatten().tolist() == stream[: len(stream) // LENGTH * LENGTH]
    assert description.dtype == dtype
    assert description.tokens + description.dropped_tokens == len(stream)
    assert description.dropped_tokens == len(stream) % LENGTH
    assert read.sha256 == hashlib.sha256((tmp_path / "train.bin").read_bytes()).hexdigest()


def test_indices_choose_blocks_in_their_order(tmp_path):
    packed(tmp_path, documents())
    read = Blocks(tmp_path, "train")
    everything = read[np.arange(len(read))]
    assert torch.equal(read[np.array([7, 0, 7])], everything[[7, 0, 7]])


def test_token_counts(tmp_path, monkeypatch):
    packed(tmp_path, documents())
    read = Blocks(tmp_path, "train")
    monkeypatch.setattr(blocks, "BUFFER_TOKENS", 3 * LENGTH)
    expected = torch.bincount(read[np.arange(len(read))].flatten(), minlength=300)
    counts = read.token_counts(300)
    assert counts.dtype == np.int64 and counts.tolist() == expected.tolist()


def test_the_file_cannot_be_written_through_the_blocks(tmp_path):
    packed(tmp_path, documents())
    before = (tmp_path / "train.bin").read_bytes()
    read = Blocks(tmp_path, "train")
    read[np.array([0])].fill_(9)
    assert not read._tokens.flags.writeable
    assert (tmp_path / "train.bin").read_bytes() == before


def test_less_than_a_block_is_bad_input_and_leaves_no_file(tmp_path):
    with pytest.raises(BadInput, match=r"split validation: its 4 tokens .* sequence_length 8"):
        packed(tmp_path, [[1, 2, 3]], split="validation")
    assert list(tmp_path.iterdir()) == []


def test_truncated_or_missing_file_is_named(tmp_path):
    packed(tmp_path, documents())
    file = tmp_path / "train.bin"
    file.write_bytes(file.read_bytes()[:-2])
    with pytest.raises(BadInput, match=r"train\.bin has \d+ bytes instead of \d+"):
        Blocks(tmp_path, "train")
    file.unlink()
    with pytest.raises(BadInput, match=r"train\.bin cannot be read"):
        Blocks(tmp_path, "train")
