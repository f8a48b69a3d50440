"""A name is durable or it is not there: a write that fails leaves the old content and nothing half written."""

import errno
import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from storage import durable, locks
from tests.storage import runs


def test_what_is_written_is_read_back(tmp_path):
    durable.write_json(tmp_path / "a.json", {"zahl": 1.5, "wort": "größe"})
    assert durable.read_json(tmp_path / "a.json") == {"zahl": 1.5, "wort": "größe"}
    assert [file.name for file in tmp_path.iterdir()] == ["a.json"]


@pytest.mark.parametrize("broken", [b"", b"{", b"\xff\xfe", b'{"a": 1} x'])
def test_json_that_cannot_be_read_names_the_file(tmp_path, broken):
    (tmp_path / "a.json").write_bytes(broken)
    with pytest.raises(ValueError, match=r"a\.json is not JSON"):
        durable.read_json(tmp_path / "a.json")


def test_a_missing_file_differs_from_a_broken_one(tmp_path):
    with pytest.raises(FileNotFoundError):
        durable.read_json(tmp_path / "a.json")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [-float("inf")]}])
def test_neither_json_takes_numbers_that_are_not_finite(tmp_path, value):
    durable.write_json(tmp_path / "a.json", "old")
    with pytest.raises(ValueError, match="not JSON compliant"):
        durable.canonical_json(value)
    with pytest.raises(ValueError, match="not JSON compliant"):
        durable.write_json(tmp_path / "a.json", value)
    assert durable.read_json(tmp_path / "a.json") == "old"
    assert not runs.temporaries(tmp_path)


def test_canonical_json_is_one_text_for_equal_values():
    assert durable.canonical_json({"b": 1, "a": [1.0, "ü"]}) == '{"a":[1.0,"ü"],"b":1}'.encode()
    assert durable.sha256_json({"b": 1, "a": 2}) == durable.sha256_json({"a": 2, "b": 1})
    assert durable.sha256_json(1) != durable.sha256_json(1.0)


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_file_whose_writing_fails_keeps_its_old_content(tmp_path, error):
    durable.write_bytes(tmp_path / "a", b"old")
    with pytest.raises(type(error)), durable.new_file(tmp_path / "a") as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert runs.tree(tmp_path) == {"a": b"old"}


def test_a_file_appears_only_when_its_block_has_ended(tmp_path):
    with durable.new_file(tmp_path / "a") as temporary:
        temporary.write_bytes(b"new")
        assert temporary.parent == tmp_path
        assert not (tmp_path / "a").exists()
    assert runs.tree(tmp_path) == {"a": b"new"}


def test_two_writers_of_one_name_do_not_share_a_temporary(tmp_path):
    with durable.new_file(tmp_path / "a") as first, durable.new_file(tmp_path / "a") as second:
        assert first != second
        first.write_bytes(b"first")
        second.write_bytes(b"second")
    assert runs.tree(tmp_path) == {"a": b"first"}


def test_a_new_directory_replaces_the_old_one_whole(tmp_path):
    for name in ("old", "new"):
        with durable.new_directory(tmp_path / "folder") as folder:
            (folder / "below").mkdir()
            (folder / "below" / name).write_text(name)
    assert runs.tree(tmp_path) == {"folder/below/new": b"new"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyboardInterrupt()])
def test_a_directory_whose_filling_fails_keeps_the_old_one(tmp_path, error):
    with durable.new_directory(tmp_path / "folder") as folder:
        (folder / "old").write_text("old")
    with pytest.raises(type(error)), durable.new_directory(tmp_path / "folder") as folder:
        (folder / "new").write_text("new")
        raise error
    assert runs.tree(tmp_path) == {"folder/old": b"old"}
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_a_quick_replacement_that_fails_keeps_the_old_content(tmp_path):
    durable.replace_quickly(tmp_path / "a", {"at": 1})
    with runs.files_no_larger_than(1000), pytest.raises(OSError):
        durable.replace_quickly(tmp_path / "a", {"at": "x" * 5000})
    assert runs.tree(tmp_path) == {"a": b'{"at":1}'}


def test_a_sweep_removes_what_dead_processes_left_but_not_below_locks(tmp_path):
    kept = ["a", "model/weights", "locks/1.json", "locks/.tmp-2-77-1"]
    left = [".tmp-a-77-1", "model/.tmp-weights-77-1", "checkpoints/.tmp-5-77-1/state.json"]
    left += ["checkpoints/.tmp-5-77-1/.tmp-inner"]
    for name in kept + left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    removed = durable.remove_leftovers(tmp_path)
    assert set(runs.tree(tmp_path)) == set(kept)
    assert {".tmp-a-77-1", "model/.tmp-weights-77-1", "checkpoints/.tmp-5-77-1"} <= set(removed)
    assert durable.remove_leftovers(tmp_path) == []


def test_a_process_that_is_killed_while_writing_leaves_only_what_a_sweep_removes(tmp_path):
    durable.write_bytes(tmp_path / "a", b"old")
    killed = """
import os, signal, sys
from pathlib import Path
from storage import durable
root = Path(sys.argv[1])
with durable.new_file(root / "a") as file, durable.new_directory(root / "folder") as folder:
    file.write_bytes(b"half")
    (folder / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", killed, str(tmp_path)], cwd=runs.REPOSITORY, timeout=300, check=False)
    assert done.returncode == -9
    assert runs.temporaries(tmp_path)
    assert (tmp_path / "a").read_bytes() == b"old" and not (tmp_path / "folder").exists()
    durable.remove_leftovers(tmp_path)
    assert runs.tree(tmp_path) == {"a": b"old"}


def test_the_bytes_are_synced_before_the_rename_and_the_name_after_it(tmp_path, monkeypatch):
    seen, here = [], threading.get_ident()  # threads that other tests left write too
    fsync, rename = durable.os.fsync, durable.os.rename

    def noted_fsync(descriptor):
        path = durable.os.readlink(f"/proc/self/fd/{descriptor}")
        if threading.get_ident() == here:
            seen.append(("sync", path == str(tmp_path)))
        fsync(descriptor)

    def noted_rename(source, target):
        if threading.get_ident() == here:
            seen.append(("rename", True))
        rename(source, target)

    monkeypatch.setattr(durable.os, "fsync", noted_fsync)
    monkeypatch.setattr(durable.os, "rename", noted_rename)
    durable.write_bytes(tmp_path / "a", b"x")
    assert seen == [("sync", False), ("rename", True), ("sync", True)]
    seen.clear()
    with durable.new_directory(tmp_path / "folder") as folder:
        (folder / "file").write_bytes(b"x")
    assert seen == [("sync", False), ("sync", False), ("rename", True), ("sync", True)]


@pytest.mark.parametrize("failing", [1, 2])
def test_a_directory_that_cannot_take_the_place_of_another_leaves_that_one_there(tmp_path, monkeypatch, failing):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_bytes(b"old")
    rename, calls = durable.os.rename, []

    def failing_rename(source, target):
        calls.append(target)
        if len(calls) in (failing, failing + 1):  # it is tried once again
            raise OSError(116, "Stale file handle", str(source))
        rename(source, target)

    monkeypatch.setattr(durable.os, "rename", failing_rename)
    with pytest.raises(OSError, match="Stale"), durable.new_directory(tmp_path / "folder") as folder:
        (folder / "new").write_bytes(b"new")
    assert runs.tree(tmp_path) == {"folder/old": b"old"}


# ------------------------------------------------------------------------------------------------ a full disk

WRITES_TOO_MUCH = """
import resource, sys
from pathlib import Path
from storage import durable
root = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    durable.write_bytes(root / "a", b"x" * 5000)
except OSError as error:
    print(error.errno, error)
try:
    with durable.new_directory(root / "folder") as folder:
        (folder / "small").write_bytes(b"x")
        (folder / "large").write_bytes(b"x" * 5000)
except OSError as error:
    print(error.errno, error)
"""


def test_a_file_size_limit_leaves_the_old_content_and_names_the_file(tmp_path):
    durable.write_bytes(tmp_path / "a", b"old")
    with durable.new_directory(tmp_path / "folder") as folder:
        (folder / "old").write_bytes(b"old")
    done = subprocess.run(
        [sys.executable, "-c", WRITES_TOO_MUCH, str(tmp_path)],
        cwd=runs.REPOSITORY,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [str(errno.EFBIG)] * 2
    assert str(tmp_path / "a") in lines[0] and str(tmp_path / "folder") in lines[1]
    assert runs.tree(tmp_path) == {"a": b"old", "folder/old": b"old"}
    assert not runs.temporaries(tmp_path)


def test_a_full_disk_leaves_the_old_content_and_names_the_file(small_disk):
    durable.write_bytes(small_disk / "a", b"old")
    with pytest.raises(OSError) as error:
        durable.write_bytes(small_disk / "a", b"x" * 1_000_000)
    assert error.value.errno == errno.ENOSPC and str(small_disk / "a") in str(error.value)
    assert runs.tree(small_disk) == {"a": b"old"}
    durable.write_bytes(small_disk / "a", b"x" * 100_000)  # what was half written gave its space back


def test_a_full_disk_leaves_the_old_directory(small_disk):
    with durable.new_directory(small_disk / "folder") as folder:
        (folder / "old").write_bytes(b"old")
    with pytest.raises(OSError) as error, durable.new_directory(small_disk / "folder") as folder:
        (folder / "small").write_bytes(b"x")
        (folder / "large").write_bytes(b"x" * 1_000_000)
    assert error.value.errno == errno.ENOSPC
    assert runs.tree(small_disk) == {"folder/old": b"old"}


def write_tensors(path):
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1_000_000)}, path)


def write_parquet(path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"a": np.random.default_rng(0).random(200_000)}), path)


def write_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(1_000_000))


@pytest.mark.parametrize("write", [write_tensors, write_parquet, write_array])
@pytest.mark.parametrize("into", ["file", "directory"])
def test_a_full_disk_is_reported_as_one_whatever_library_wrote(small_disk, write, into):
    """safetensors raises an error of its own, NumPy one without a number: both would pass for a crash."""
    with pytest.raises(OSError) as error:
        if into == "file":
            with durable.new_file(small_disk / "a") as file:
                write(file)
        else:
            with durable.new_directory(small_disk / "a") as folder:
                write(folder / "part")
    assert error.value.errno == errno.ENOSPC and str(small_disk / "a") in str(error.value)
    assert runs.tree(small_disk) == {}


def test_a_read_only_disk_leaves_the_old_content(small_disk):
    durable.write_bytes(small_disk / "a", b"old")
    runs.remount(small_disk, "ro")
    with pytest.raises(OSError) as error:
        durable.write_bytes(small_disk / "a", b"new")
    assert error.value.errno == errno.EROFS
    assert runs.tree(small_disk) == {"a": b"old"}


def test_a_link_is_replaced_in_one_step_and_leads_below_its_own_folder(tmp_path, monkeypatch):
    for name in ("first", "second"):
        (tmp_path / "root" / name).mkdir(parents=True)
    link, seen = tmp_path / "root" / "latest", []
    rename = os.rename
    monkeypatch.setattr(os, "rename", lambda *paths: (seen.append(link.is_symlink()), rename(*paths)))
    for name in ("first", "second"):
        durable.replace_link(link, tmp_path / "root" / name)
        assert os.readlink(link) == name
    assert seen == [False, True], "it was there until the new one took its place"
    (tmp_path / "root").rename(tmp_path / "moved")
    assert (tmp_path / "moved" / "latest").resolve() == tmp_path / "moved" / "second"


def test_a_folder_in_the_place_of_a_link_stays_and_nothing_is_left_over(tmp_path):
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine").touch()
    with pytest.raises(OSError):
        durable.replace_link(tmp_path / "latest", tmp_path / "first")
    assert [path.name for path in tmp_path.rglob("*")] == ["latest", "mine"]


def fails(monkeypatch, name, number, times=1, done=False):
    """The first `times` calls of a function of `os` end with this error; where `done`, the answer alone is lost."""
    real, calls = getattr(os, name), []

    def call(*given, **named):
        calls.append(given)
        if len(calls) <= times:
            if done:
                real(*given, **named)
            raise OSError(number, os.strerror(number), str(given[0]))
        return real(*given, **named)

    monkeypatch.setattr(os, name, call)
    return calls


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO], ids=["ESTALE", "EIO"])
@pytest.mark.parametrize("call", ["rename", "open", "fsync", "rename done", "listdir", "link", "link done"])
def test_a_disk_that_once_does_not_answer_is_asked_again_and_one_that_never_does_is_not(
    tmp_path, monkeypatch, call, number
):
    def work():
        durable.write_json(tmp_path / "a", [1])
        with durable.new_directory(tmp_path / "folder") as folder:
            (folder / "x").touch()
        durable.remove_directory(tmp_path / "folder")
        lock = locks.acquire(tmp_path / "locks")
        lock.check()
        lock.release()
        return durable.read_json(tmp_path / "a"), lock.number

    name, _, done = call.partition(" ")
    with monkeypatch.context() as patch:
        fails(patch, name, number, done=bool(done))
        assert work() == ([1], 1)
    assert not [*tmp_path.rglob(f"{durable.TEMPORARY_PREFIX}*")]
    with monkeypatch.context() as patch:
        fails(patch, name, number, times=1000)
        with pytest.raises(OSError, match=os.strerror(number)):
            work()
    with monkeypatch.context() as patch:
        fails(patch, name, errno.EACCES)
        with pytest.raises(PermissionError):
            work()
