"""A checkpoint is believed only when every byte verifies; the newest one that does is continued from."""

import json
import logging

import pytest
import torch

from storage import durable, locks
from storage.checkpoints import Checkpoints, verify
from storage.errors import CheckFailed
from storage.locks import LockLost
from tests.storage import runs

IDENTITY = {"fingerprint": "f" * 64, "inputs": {"setup": "a" * 64}}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


@pytest.fixture
def checkpoints(folder, lock):
    return Checkpoints(folder, IDENTITY, lock)


def save(checkpoints, *steps, needs=()):
    for step in steps:
        model = {"weight": torch.full((4,), float(step)), "bias": torch.zeros(0)}
        optimizer = {"0.step": torch.tensor(step), "0.exp_avg": torch.arange(6.0).reshape(2, 3) + step}
        checkpoints.save(
            step, {"model": model, "optimizer": optimizer}, {"position": {"step": step, "loss": step / 3}}, needs
        )


def steps(folder):
    return sorted(int(path.name) for path in folder.iterdir())


# ----------------------------------------------------------------------------------------------- round trip


def test_what_was_saved_comes_back_bit_for_bit(checkpoints):
    save(checkpoints, 5)
    found = checkpoints.newest_verified()
    assert found.step == 5 and found.state == {"position": {"step": 5, "loss": 5 / 3}}
    assert torch.equal(found.tensors("model")["weight"], torch.full((4,), 5.0))
    optimizer = found.tensors("optimizer")
    assert torch.equal(optimizer["0.exp_avg"], torch.arange(6.0).reshape(2, 3) + 5)
    assert optimizer["0.step"].dtype == torch.int64 and optimizer["0.step"].shape == ()


def test_special_bits_come_back_as_they_were(checkpoints):
    bits = torch.tensor([0x7FC00001, 0x00000001, -0x80000000, 0x7F800000], dtype=torch.int32)
    checkpoints.save(1, {"model": {"weight": bits.view(torch.float32)}}, {})
    assert torch.equal(checkpoints.newest_verified().tensors("model")["weight"].view(torch.int32), bits)


def test_the_newest_step_is_taken_by_number_not_by_name(checkpoints):
    save(checkpoints, 9, 10, 100)
    assert checkpoints.newest_verified().step == 100


def test_a_run_without_checkpoints_has_none(checkpoints, folder):
    assert checkpoints.newest_verified() is None
    folder.mkdir()
    assert checkpoints.newest_verified() is None


def test_names_that_are_no_steps_are_passed_over(checkpoints, folder):
    save(checkpoints, 5)
    for name in (".tmp-7-1-1", "best", "-8", "9.5", "٣", "²"):
        (folder / name).mkdir()
    (folder / "12").write_text("a file")
    assert checkpoints.newest_verified().step == 5


def test_a_checkpoint_of_the_same_step_is_replaced_whole(checkpoints, folder):
    save(checkpoints, 5)
    checkpoints.save(5, {"other": {"weight": torch.zeros(1)}}, {"again": True})
    assert checkpoints.newest_verified().state == {"again": True}
    assert sorted(file.name for file in (folder / "5").iterdir()) == [
        "manifest.json",
        "other.safetensors",
        "state.json",
    ]


def test_state_that_is_no_json_leaves_nothing(checkpoints, folder):
    save(checkpoints, 5)
    with pytest.raises(ValueError, match="not JSON compliant"):
        checkpoints.save(6, {"model": {"weight": torch.zeros(1)}}, {"loss": float("nan")})
    assert [path.name for path in folder.iterdir()] == ["5"]


# ------------------------------------------------- what is torn: files one by one are in test_corruptions.py


def flip_a_bit(checkpoint):
    runs.edit_unnoticed(checkpoint / "optimizer.safetensors")


def delete_everything(checkpoint):
    for file in checkpoint.iterdir():
        file.unlink()


def empty_the_manifest(checkpoint):
    (checkpoint / "manifest.json").write_text("{}")


def list_no_state(checkpoint):
    """A manifest that fits its folder, in which the state is missing altogether."""
    (checkpoint / "state.json").unlink()
    manifest = json.loads((checkpoint / "manifest.json").read_bytes())
    del manifest["files"]["state.json"]
    (checkpoint / "manifest.json").write_bytes(durable.canonical_json(manifest))


@pytest.mark.parametrize("damage", [delete_everything, empty_the_manifest, list_no_state])
def test_a_damaged_checkpoint_is_passed_over_by_name_for_the_older_one(checkpoints, folder, caplog, damage):
    save(checkpoints, 10, 20)
    damage(folder / "20")
    with caplog.at_level(logging.WARNING):
        found = checkpoints.newest_verified()
    assert found.step == 10 and found.state["position"]["step"] == 10
    assert [record.args[0] for record in caplog.records] == [20]
    assert "checkpoint 20 is passed over: " in caplog.text
    with pytest.raises((ValueError, OSError)):
        checkpoints.verified(20)


def test_no_byte_of_a_manifest_can_change_into_a_crash_or_another_state(checkpoints, folder):
    save(checkpoints, 10, 20)
    manifest = folder / "20" / "manifest.json"
    whole = manifest.read_bytes()
    state = checkpoints.verified(20).state
    for place in range(len(whole)):
        for other in (whole[place] ^ 1, whole[place] ^ 0x80):
            manifest.write_bytes(whole[:place] + bytes([other]) + whole[place + 1 :])
            found = checkpoints.newest_verified()
            assert found.step == 10 or found.state == state


def test_with_every_checkpoint_damaged_nothing_is_begun_anew_unasked(checkpoints, folder, caplog):
    save(checkpoints, 10, 20)
    for step in ("10", "20"):
        flip_a_bit(folder / step)
    with pytest.raises(CheckFailed, match=r"required one that verifies\. Restore what is damaged, or remove .*anew"):
        checkpoints.newest_verified()
    assert "checkpoint 10 is passed over" in caplog.text and "checkpoint 20 is passed over" in caplog.text


@pytest.mark.parametrize("other", [{"fingerprint": "0" * 64}, {"inputs": {"setup": "b" * 64}}, {"inputs": {}}])
def test_a_checkpoint_of_another_configuration_or_other_inputs_is_passed_over(checkpoints, folder, lock, caplog, other):
    caplog.set_level("INFO", logger="ratchet")
    save(Checkpoints(folder, IDENTITY | other, lock), 20)
    save(checkpoints, 10)
    assert checkpoints.newest_verified().step == 10
    assert "was made for another configuration or other inputs" in caplog.text


def test_verify_reads_without_knowing_whose_it_is(checkpoints, folder):
    save(checkpoints, 10)
    assert verify(folder / "10")["identity"] == IDENTITY
    flip_a_bit(folder / "10")
    with pytest.raises(ValueError, match=r"optimizer\.safetensors is torn or altered"):
        verify(folder / "10")


def test_one_that_cannot_be_continued_from_is_passed_over_with_the_reason(checkpoints, caplog):
    save(checkpoints, 10, 20, 30)
    asked = []

    def accept(found):
        asked.append(found.step)
        if found.step > 10:
            raise ValueError(f"the metrics before {found.step} were altered")

    assert checkpoints.newest_verified(accept).step == 10
    assert asked == [30, 20, 10]
    assert "checkpoint 30 is passed over: the metrics before 30 were altered" in caplog.text


def test_a_damaged_checkpoint_is_never_shown_to_the_caller(checkpoints, folder):
    save(checkpoints, 10, 20)
    flip_a_bit(folder / "20")
    asked = []
    checkpoints.newest_verified(lambda found: asked.append(found.step))
    assert asked == [10]


# ------------------------------------------------------------------------------------------------- taken over


def test_a_holder_that_was_taken_over_cannot_save(checkpoints, folder, tmp_path):
    save(checkpoints, 10)
    before = runs.tree(folder)
    (tmp_path / "locks" / "2.json").write_text("{}")
    for step in (10, 20):
        with pytest.raises(LockLost):
            save(checkpoints, step)
    assert runs.tree(folder) == before


def test_a_holder_that_is_taken_over_while_it_saves_leaves_the_other_checkpoint_alone(checkpoints, folder, tmp_path):
    save(checkpoints, 10)
    before = runs.tree(folder)

    class Groups(dict):
        def items(self):
            yield "model", {"weight": torch.full((4,), 666.0)}
            (tmp_path / "locks" / "2.json").write_text("{}")  # between writing and commit

    for step in (10, 20):
        with pytest.raises(LockLost):
            checkpoints.save(step, Groups(), {})
        assert runs.tree(folder) == before
        (tmp_path / "locks" / "2.json").unlink()


def test_the_manifest_names_the_lock(checkpoints, folder, lock):
    save(checkpoints, 10)
    assert verify(folder / "10")["lock"] == lock.number


# ----------------------------------------------------------------------------------------------- a full disk


def test_a_full_disk_leaves_the_older_checkpoint(small_disk):
    lock = locks.acquire(small_disk / "locks")
    checkpoints = Checkpoints(small_disk / "checkpoints", IDENTITY, lock)
    save(checkpoints, 10)
    with pytest.raises(OSError, match=r"No space left on device.*checkpoints/20"):
        checkpoints.save(20, {"model": {"weight": torch.zeros(1_000_000)}}, {})
    lock.release()
    assert steps(small_disk / "checkpoints") == [10]
    assert checkpoints.newest_verified().step == 10


# ---------------------------------------------------------------------------------------------------- pruning


@pytest.mark.parametrize(
    ("keep", "best", "left"),
    [
        (2, None, [40, 50]),
        (2, 20, [20, 40, 50]),
        (2, 50, [40, 50]),
        (1, 10, [10, 50]),
        (0, None, [50]),
        (9, None, [10, 20, 30, 40, 50]),
        (2, 99, [40, 50]),
    ],
)
def test_pruning_keeps_the_newest_and_the_best(checkpoints, folder, keep, best, left):
    save(checkpoints, 10, 20, 30, 40)
    save(checkpoints, 50, needs=[] if best is None else [best])
    checkpoints.prune(keep)
    assert steps(folder) == left
    assert best == 99 or checkpoints.newest_verified().step == 50


def test_pruning_keeps_what_was_best_at_each_that_is_kept(checkpoints, folder):
    """Or the one before the newest could not be continued from when the newest is damaged."""
    save(checkpoints, 10)
    save(checkpoints, 40, needs=[10])
    save(checkpoints, 50, needs=[50])
    checkpoints.prune(2)
    assert steps(folder) == [10, 40, 50]
    flip_a_bit(folder / "50")
    assert checkpoints.newest_verified().step == 40


def test_one_that_needs_a_damaged_one_is_passed_over(checkpoints, folder):
    save(checkpoints, 10, 20, 30)
    save(checkpoints, 40, needs=[20])
    flip_a_bit(folder / "20")
    assert checkpoints.newest_verified().step == 30


def test_the_only_checkpoint_is_never_pruned(checkpoints, folder):
    save(checkpoints, 10)
    checkpoints.prune(1)
    checkpoints.prune(0)
    assert steps(folder) == [10]


def test_a_checkpoint_that_was_passed_over_does_not_crowd_out_the_good_ones(checkpoints, folder):
    """After falling back, what is saved next has a lower step than the damaged ones: it must not be pruned."""
    save(checkpoints, 10, 20, 30)
    flip_a_bit(folder / "20")
    flip_a_bit(folder / "30")
    assert checkpoints.newest_verified().step == 10
    save(checkpoints, 15)
    checkpoints.prune(2)
    assert {10, 15} <= set(steps(folder))
    assert checkpoints.newest_verified().step == 15
    save(checkpoints, 20)
    checkpoints.prune(2)
    assert checkpoints.newest_verified().step == 20
    assert {15, 20} <= set(steps(folder)), "saved again, step 20 counts again"


def test_what_this_attempt_read_is_kept_until_something_newer_was_read(checkpoints, folder):
    """What was saved since was never read back: until then it is the only one known to be whole on the disk."""
    save(checkpoints, 10)
    assert checkpoints.newest_verified().step == 10
    save(checkpoints, 20, 30, 40)
    checkpoints.prune(1)
    assert steps(folder) == [10, 40]
    assert checkpoints.newest_verified().step == 40
    save(checkpoints, 50)
    checkpoints.prune(1)
    assert steps(folder) == [40, 50]


def test_nothing_is_removed_when_it_is_unknown_what_a_kept_one_needs(checkpoints, folder):
    save(checkpoints, 10, 20)
    save(checkpoints, 30, needs=[10])
    (folder / "30" / "manifest.json").write_text("")
    checkpoints.prune(1)
    assert steps(folder) == [10, 20, 30]
