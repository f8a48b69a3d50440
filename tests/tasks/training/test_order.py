"""The order is a permutation, a pure function of (seed, epoch, index), and costs the same anywhere."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.training.order import example_at

SIZES = [1, 2, 3, 5, 16, 17, 1000, 4096, 4097]


def order(seed: int, epoch: int, count: int) -> list[int]:
    return example_at(seed, epoch, np.arange(count), count).tolist()


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (42, 0), (42, 7), (2**40, 3)])
def test_every_example_stands_once_in_an_epoch(seed, epoch, count):
    assert sorted(order(seed, epoch, count)) == list(range(count))


@pytest.mark.parametrize("count", SIZES)
def test_many_positions_at_once_are_the_same_as_one_by_one_in_any_sequence(count):
    whole = order(42, 1, count)
    positions = np.random.default_rng(0).integers(0, count, size=50)
    one_by_one = [int(example_at(42, 1, np.array([position]), count)[0]) for position in positions]
    assert one_by_one == [whole[position] for position in positions]


def test_seeds_and_epochs_have_orders_of_their_own():
    orders = {(seed, epoch): order(seed, epoch, 1000) for seed in (0, 1, 42) for epoch in range(4)}
    assert len({tuple(values) for values in orders.values()}) == len(orders)
    reference = orders.pop((42, 0))
    for values in orders.values():  # two random orders agree at about one place
        assert sum(a == b for a, b in zip(values, reference, strict=True)) < 10


def test_the_order_is_shuffled_and_not_a_rotation():
    values = np.array(order(42, 0, 4097))
    assert abs(np.corrcoef(values, np.arange(4097))[0, 1]) < 0.1
    assert len(set(np.diff(values) % 4097)) > 2000


def test_a_far_position_of_a_huge_set_is_reached_without_what_stands_before():
    count = 10**12
    places = np.array([0, 1, 10**6, 10**12 - 1])
    examples = example_at(1, 0, places, count)
    assert len(set(examples.tolist())) == 4
    assert (examples >= 0).all() and (examples < count).all()
    assert examples.dtype == np.int64


def test_the_caller_s_indices_are_left_alone():
    indices = np.arange(17, dtype=np.uint64)
    example_at(0, 0, indices, 17)
    assert indices.tolist() == list(range(17))


def test_the_order_never_changes_between_versions():
    """These numbers stand in finished runs: another order is another stage version."""
    assert order(42, 0, 17) == KNOWN


KNOWN = [4, 11, 13, 9, 6, 14, 8, 1, 15, 2, 0, 3, 16, 5, 12, 7, 10]


def test_no_examples_is_an_error():
    with pytest.raises(ValueError, match="no examples"):
        example_at(0, 0, np.arange(0), 0)
