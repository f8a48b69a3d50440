"""Orders and draws belong to (seed, epoch, index), and cost the same anywhere: whoever asks, in whatever company."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tasks.training.draws import normal_at, uniform_at
from tasks.training.order import FileOrder, as_stored, example_at

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


# ------------------------------------------------------------------------------------------------ file by file

KNOWN_IN_FILES = [3, 0, 6, 4, 1, 5, 2, 41]
FILES = [7, 0, 31, 1, 12, 0, 25, 9, 18]


def in_files(epoch: int, open_files: int, sizes: list[int] = FILES, seed: int = 42) -> np.ndarray:
    return FileOrder(sizes, open_files)(seed, epoch, np.arange(sum(sizes)), sum(sizes))


def file_of(examples: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(FILES), examples, side="right")


@pytest.mark.parametrize("open_files", [1, 2, 4, 9, 100])
@pytest.mark.parametrize("epoch", [0, 3])
def test_every_example_of_every_file_stands_once_in_an_epoch(open_files, epoch):
    assert sorted(in_files(epoch, open_files)) == list(range(sum(FILES)))


@pytest.mark.parametrize("open_files", [1, 2, 4])
def test_no_more_files_are_read_at_a_time_and_their_examples_are_mixed(open_files):
    files = file_of(in_files(0, open_files))
    places = {file: np.flatnonzero(files == file) for file in set(files.tolist())}
    for place in range(len(files)):
        being_read = [file for file, where in places.items() if where[0] <= place <= where[-1]]
        assert len(being_read) <= open_files
    if open_files == 4:
        assert np.count_nonzero(np.diff(files)) > len(files) / 3, "not file after file"


def test_files_and_examples_have_another_order_in_each_epoch_and_for_each_seed():
    orders = [in_files(0, 1), in_files(1, 1), in_files(0, 1, seed=7)]
    visited = {tuple(dict.fromkeys(file_of(order).tolist())) for order in orders}
    assert len(visited) == 3
    whole = [in_files(epoch, 100) for epoch in (0, 1)]
    assert (whole[0] == whole[1]).sum() < 10 and abs(np.corrcoef(whole[0], np.arange(sum(FILES)))[0, 1]) < 0.3


def test_equal_blocks_of_an_epoch_are_not_shuffled_alike():
    order = in_files(0, 1, [50, 50])
    first, second = order[:50] % 50, order[50:] % 50
    assert (first == second).sum() < 10


@pytest.mark.parametrize("open_files", [1, 4])
def test_a_place_among_files_is_reached_alone_in_any_sequence(open_files):
    whole, order = in_files(2, open_files), FileOrder(FILES, open_files)
    for place in np.random.default_rng(0).integers(0, sum(FILES), 30):
        assert order(42, 2, np.array([place]), sum(FILES)).tolist() == [whole[place]]
    far = FileOrder([10**9] * 660, 4)(1, 0, np.array([0, 10**11, 66 * 10**10 - 1]), 66 * 10**10)
    assert len(set(far.tolist())) == 3 and (far >= 0).all() and (far < 66 * 10**10).all()


def test_the_order_in_files_never_changes_between_versions():
    """Trainings that are under way continue in it."""
    assert in_files(0, 2)[:8].tolist() == KNOWN_IN_FILES


@pytest.mark.parametrize(("sizes", "open_files"), [([], 1), ([0, 0], 1), ([3, -1], 1), ([3], 0)])
def test_files_without_an_order_are_refused(sizes, open_files):
    with pytest.raises(ValueError, match="have no order"):
        FileOrder(sizes, open_files)


def test_another_number_of_examples_than_the_files_hold_is_refused():
    with pytest.raises(ValueError, match="4 examples are to be ordered, and the files hold 3"):
        FileOrder([3], 1)(0, 0, np.arange(4), 4)


def test_without_shuffling_every_epoch_is_as_stored():
    assert as_stored(1, 2, np.array([4, 0, 9]), 10).tolist() == [4, 0, 9]


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
