"""The order of the training examples as a pure function of (seed, epoch, index).

A counter-based permutation: a Feistel network over the smallest even number of bits that holds all indices, walked
along its cycle until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). There is
nothing to save and nothing to skip: the example at position 10^9 costs as much as the first.
"""

from __future__ import annotations

import hashlib

import numpy as np

ROUNDS = 6
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_MIXER = np.uint64(0xBF58476D1CE4E5B9)


def example_at(seed: int, epoch: int, indices: np.ndarray, count: int) -> np.ndarray:
    """Which of `count` examples stand at `indices` of the given epoch's order.

    `indices` is an int64 array of values in [0, count); returns an int64 array of the same shape. Over all
    indices the result is a permutation.
    """
    if count < 1:
        raise ValueError("there are no examples to order")
    half_bits = max(1, (max(count - 1, 1).bit_length() + 1) // 2)
    keys = _keys(seed, epoch)
    places = np.asarray(indices).astype(np.uint64)
    placed = _feistel(places, keys, half_bits)
    outside = placed >= count
    while outside.any():  # the domain is at most 4 times as large, so this ends after a few rounds
        placed[outside] = _feistel(placed[outside], keys, half_bits)
        outside = placed >= count
    return placed.astype(np.int64)


def _feistel(values: np.ndarray, keys: np.ndarray, half_bits: int) -> np.ndarray:
    mask = np.uint64((1 << half_bits) - 1)
    shift = np.uint64(half_bits)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every input bit reaches every output bit. Wraps around on purpose."""
    with np.errstate(over="ignore"):
        mixed = (values ^ (values >> np.uint64(30))) * _MIXER
        mixed = (mixed ^ (mixed >> np.uint64(27))) * _MULTIPLIER
    return mixed ^ (mixed >> np.uint64(31))


def _keys(seed: int, epoch: int) -> np.ndarray:
    """One 64-bit key a round, from a hash, so that neighbouring seeds and epochs have nothing in common."""
    digest = hashlib.sha256(f"order {seed} {epoch}".encode()).digest() * 2
    return np.frombuffer(digest[: 8 * ROUNDS], dtype="<u8").copy()
