"""The order of the training examples as a pure function of (seed, epoch, index).

A counter-based permutation: a Feistel network over the smallest even number of bits that holds all indices, walked
along its cycle until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). There is
nothing to save and nothing to skip: the example at position 10^9 costs as much as the first.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

Order = Callable[[int, int, np.ndarray, int], np.ndarray]
"""An order like `example_at`: (seed, epoch, indices, count) -> the examples at these positions."""

ROUNDS = 6
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)


def example_at(seed: int, epoch: int, indices: np.ndarray, count: int, what: str = "") -> np.ndarray:
    """The examples (of `count`) at the positions `indices` of an epoch's order.

    `indices` is an int64 array of values in [0, count); returns an int64 array of the same shape. Over all
    indices the result is a permutation. Orders of one seed with different `what` are independent.
    """
    if count < 1:
        raise ValueError("there are no examples to order")
    half_bits = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    keys = _keys(f"{seed} {epoch} {what}".rstrip())
    places = np.asarray(indices).astype(np.uint64)
    placed = _feistel(places, keys, half_bits)
    outside = placed >= count
    while outside.any():  # the domain is at most 4 times as large, so this ends after a few rounds
        placed[outside] = _feistel(placed[outside], keys, half_bits)
        outside = placed >= count
    return placed.astype(np.int64)


def as_stored(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """The order without shuffling: every epoch reads the examples one after the other."""
    return np.asarray(indices, dtype=np.int64)


class FileOrder:
    """An order that reads few files at a time: shuffled files, and in each block of them shuffled examples.

    Examples are numbered file by file. An epoch puts the files in a random order, takes blocks of `open_files` of them,
    and reads all examples of a block in a random order before the next block. So a batch touches the files of one
    block, or of two; an example may come anywhere in the epoch, beside any other of its block. Like `example_at` it
    saves and skips nothing.
    """

    def __init__(self, sizes: Sequence[int], open_files: int):
        """`sizes` are the numbers of examples of the files. ValueError for none, and for less than one open file."""
        self.sizes, self.open_files = np.asarray(sizes, dtype=np.int64), open_files
        if not self.sizes.sum() or (self.sizes < 0).any() or open_files < 1:
            raise ValueError(f"files of {list(sizes)} examples, {open_files} open at a time, have no order")

    def __call__(self, seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
        if count != self.sizes.sum():
            raise ValueError(f"{count} examples are to be ordered, and the files hold {self.sizes.sum()}")
        files = example_at(seed, epoch, np.arange(len(self.sizes)), len(self.sizes), "files")
        first_of_file = np.concatenate([[0], np.cumsum(self.sizes)])[files]  # where a file's examples begin
        ends = np.cumsum(self.sizes[files])  # behind a file's examples, were they read one after the other
        ends_of_blocks = np.append(ends[self.open_files - 1 : -1 : self.open_files], ends[-1])
        block = np.searchsorted(ends_of_blocks, indices, side="right")
        examples = np.empty(np.shape(indices), dtype=np.int64)
        for number in np.unique(block):
            begin, end = ends_of_blocks[number - 1] if number else 0, ends_of_blocks[number]
            members = block == number
            place = begin + example_at(seed, epoch, indices[members] - begin, int(end - begin), f"block {number}")
            file = np.searchsorted(ends, place, side="right")
            examples[members] = first_of_file[file] + place - (ends[file] - self.sizes[files][file])
        return examples


def _feistel(values: np.ndarray, keys: np.ndarray, half_bits: int) -> np.ndarray:
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every input bit reaches every output bit. Wraps around on purpose."""
    mixed = (values ^ (values >> np.uint64(30))) * _MIXER
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MULTIPLIER
    return mixed ^ (mixed >> np.uint64(31))


def _keys(text: str) -> np.ndarray:
    """One 64-bit key a round, from a hash, so that neighbouring seeds and epochs have nothing in common."""
    digest = hashlib.sha256(f"order {text}".encode()).digest() * 2
    return np.frombuffer(digest[: 8 * ROUNDS], dtype="<u8").copy()
