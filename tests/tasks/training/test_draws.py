"""Draws that belong to (seed, purpose, epoch, index): whoever asks, in whatever company and order, gets the same."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tasks.training.draws import normal_at, uniform_at

INDICES = np.array([7, 0, 3, 10**9, 5])
DRAWS = pytest.mark.parametrize("draw", [uniform_at, normal_at])


@DRAWS
def test_an_example_has_its_numbers_alone_in_company_and_in_any_order(draw):
    whole = draw(3, "noise", 2, INDICES, (4, 2))
    assert whole.shape == (5, 4, 2) and whole.dtype == torch.float32
    alone = torch.cat([draw(3, "noise", 2, np.array([index]), (4, 2)) for index in INDICES])
    assert torch.equal(alone, whole)
    assert torch.equal(draw(3, "noise", 2, INDICES[::-1], (4, 2)), whole.flip(0))
    with ThreadPoolExecutor(4) as pool:
        assert all(
            torch.equal(again, whole) for again in pool.map(lambda _: draw(3, "noise", 2, INDICES, (4, 2)), range(8))
        )


@DRAWS
def test_seed_purpose_epoch_and_example_each_give_other_numbers(draw):
    drawn = [
        draw(seed, purpose, epoch, np.array([index]), (8,))
        for seed in (3, 4)
        for purpose in ("noise", "mask")
        for epoch in (0, 1)
        for index in (0, 1)
    ]
    values = torch.cat(drawn).flatten().tolist()
    assert len(set(values)) == len(values) == 16 * 8


@DRAWS
def test_more_numbers_for_an_example_begin_with_the_same_ones(draw):
    """So that they are its stream, and no other example's."""
    assert torch.equal(draw(3, "noise", 0, INDICES, (9,))[:, :4], draw(3, "noise", 0, INDICES, (4,)))
    assert draw(3, "noise", 0, INDICES).shape == (5,)


def test_the_numbers_are_those_of_a_philox_generator_with_this_key_and_counter():
    key = np.frombuffer(hashlib.sha256(b"draws 3 noise").digest()[:16], dtype="<u8")
    for row, index in zip(normal_at(3, "noise", 2, INDICES, (5,)), INDICES, strict=True):
        generator = np.random.Generator(np.random.Philox(key=key, counter=[0, 0, int(index), 2]))
        assert row.tolist() == generator.standard_normal(5, dtype=np.float32).tolist()


def test_the_numbers_have_the_distribution_that_they_say():
    many = np.arange(2000)
    normal, uniform = normal_at(1, "a", 0, many, (50,)), uniform_at(1, "a", 0, many, (50,))
    assert abs(normal.mean()) < 0.02 and abs(normal.std() - 1) < 0.02
    assert abs(uniform.mean() - 0.5) < 0.005 and uniform.min() >= 0 and uniform.max() < 1
    between = np.corrcoef(normal[:-1].flatten(), normal[1:].flatten())[0, 1]
    assert abs(between) < 0.02


def test_no_global_generator_is_touched():
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    normal_at(1, "a", 0, INDICES)
    assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]
