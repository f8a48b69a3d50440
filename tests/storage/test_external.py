"""Inputs from outside count by content: the same files elsewhere are the same input, other bytes are another."""

import hashlib
import json
import os
import shutil

import pytest

from storage import durable, external
from storage.errors import BadInput
from tests.storage import runs


@pytest.fixture(autouse=True)
def cache_file(tmp_path, monkeypatch):
    """A digest cache of our own instead of the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "ratchet" / "digests.json"


@pytest.fixture
def texts(tmp_path):
    folder = tmp_path / "texts"
    (folder / "below").mkdir(parents=True)
    (folder / "a.txt").write_text("one")
    (folder / "below" / "b.txt").write_text("two")
    return folder


# ------------------------------------------------------------------------------------------------- manifests


def test_a_manifest_names_files_relative_to_the_folder_given(texts):
    manifest = external.file_manifest([str(texts)])
    assert list(manifest) == ["a.txt", "below/b.txt"]
    assert manifest["a.txt"] == durable.sha256_file(texts / "a.txt")


def test_the_same_files_elsewhere_have_the_same_manifest(texts, tmp_path, monkeypatch):
    here = external.file_manifest([str(texts)])
    elsewhere = shutil.copytree(texts, tmp_path / "another" / "place")
    assert external.file_manifest([str(elsewhere)]) == here
    monkeypatch.chdir(tmp_path)
    assert external.file_manifest(["texts"]) == here
    monkeypatch.setenv("HOME", str(tmp_path))
    assert external.file_manifest(["~/texts/"]) == here
    assert str(tmp_path) not in json.dumps(here)


def test_a_renamed_file_and_other_bytes_are_another_input(texts):
    before = external.file_manifest([str(texts)])
    (texts / "a.txt").rename(texts / "c.txt")
    renamed = external.file_manifest([str(texts)])
    (texts / "c.txt").write_text("changed")
    assert len({json.dumps(manifest) for manifest in (before, renamed, external.file_manifest([str(texts)]))}) == 3


def test_hidden_files_do_not_count(texts):
    before = external.file_manifest([str(texts)])
    for name in (".hidden", ".git/config", "below/.DS_Store"):
        (texts / name).parent.mkdir(exist_ok=True)
        (texts / name).write_text("x")
    assert external.file_manifest([str(texts)]) == before


def test_a_hidden_folder_above_the_given_one_hides_nothing(texts, tmp_path):
    inside = shutil.copytree(texts, tmp_path / ".cache" / "texts")
    assert external.file_manifest([str(inside)]) == external.file_manifest([str(texts)])


def test_a_file_can_be_given_by_itself(texts):
    assert list(external.file_manifest([str(texts / "below" / "b.txt")])) == ["b.txt"]


def test_files_of_one_name_in_several_folders_are_told_apart_by_the_folders(texts, tmp_path, monkeypatch):
    """Seen: "two input files are both called 'a.txt': rename one", of folders in which one may not write."""
    for name in ("x/run", "y/run", "y/other"):
        shutil.copytree(texts, tmp_path / name)
    (tmp_path / "x" / "run" / "only.txt").write_text("of one")
    given = [str(tmp_path / name) for name in ("x/run", "y/run", "y/other/a.txt")]
    names = ["x/run/a.txt", "x/run/below/b.txt", "only.txt", "y/run/a.txt", "y/run/below/b.txt", "other/a.txt"]
    assert [name for name, _ in external.local_files(*given)] == names
    before = external.file_manifest(given)
    monkeypatch.chdir(tmp_path / "y" / "run")
    assert external.file_manifest(["../../x/run", ".", "../other/a.txt"]) == before
    assert list(external.file_manifest([given[0]])) == ["a.txt", "below/b.txt", "only.txt"]  # alone as before


@pytest.mark.parametrize("again", ["a.txt", "below/b.txt", "below", ""])
def test_a_file_that_is_given_twice_is_refused_as_such(texts, again):
    with pytest.raises(BadInput, match=r"\.txt is given twice, by itself or by a folder: give it once"):
        external.file_manifest([str(texts), str(texts / again)])


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(BadInput, match=f"there is no file or folder {tmp_path}/nowhere"):
        external.file_manifest([str(tmp_path / "nowhere")])


def test_an_empty_folder_is_named_also_when_it_holds_hidden_files(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").write_text("x")
    with pytest.raises(BadInput, match=f"the folder {tmp_path}/empty holds no files"):
        external.file_manifest([str(tmp_path / "empty")])


# ------------------------------------------------------------------------------------------------- the cache


def test_a_file_of_the_same_size_and_another_time_is_read_again(texts):
    before = external.file_manifest([str(texts)])
    stat = (texts / "a.txt").stat()
    with (texts / "a.txt").open("r+") as file:
        file.write("eno")
    os.utime(texts / "a.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
    after = external.file_manifest([str(texts)])
    assert after["a.txt"] == durable.sha256_file(texts / "a.txt") != before["a.txt"]


def test_a_file_that_was_edited_in_place_and_whose_time_was_set_back_is_read_again(texts):
    external.file_manifest([str(texts)])
    stat = (texts / "a.txt").stat()
    with (texts / "a.txt").open("r+") as file:
        file.write("eno")
    os.utime(texts / "a.txt", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert external.file_manifest([str(texts)])["a.txt"] == durable.sha256_file(texts / "a.txt")


def test_a_file_that_replaced_another_of_the_same_size_and_time_is_read_again(texts):
    external.file_manifest([str(texts)])
    stat = (texts / "a.txt").stat()
    (texts / "new").write_text("eno")
    os.utime(texts / "new", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    (texts / "new").rename(texts / "a.txt")
    assert external.file_manifest([str(texts)])["a.txt"] == durable.sha256_file(texts / "a.txt")


def test_an_untouched_file_is_not_hashed_again(texts, monkeypatch):
    before = external.file_manifest([str(texts)])
    hashed = []
    monkeypatch.setattr(hashlib, "file_digest", lambda file, name: hashed.append(file))
    assert external.file_manifest([str(texts)]) == before
    assert not hashed


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"x": 3}', b"\xff"])
def test_a_broken_cache_is_only_a_cache(texts, cache_file, content):
    before = external.file_manifest([str(texts)])
    cache_file.write_bytes(content)
    assert external.file_manifest([str(texts)]) == before


def test_a_cache_of_another_user_is_not_believed(texts, cache_file):
    before = external.file_manifest([str(texts)])
    known = json.loads(cache_file.read_bytes())
    cache_file.write_text(json.dumps({path: [stamp, "f" * 64] for path, (stamp, _) in known.items()}))
    assert set(external.file_manifest([str(texts)]).values()) == {"f" * 64}, "the cache is in use"
    if os.getuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(cache_file, 12345, 12345)
    assert external.file_manifest([str(texts)]) == before


@pytest.mark.parametrize("forge", ["open to all", "a link", "of another user"])
def test_a_cache_in_a_folder_that_another_user_can_write_in_is_neither_believed_nor_written(
    texts, cache_file, tmp_path, forge
):
    """It stood in /tmp, where the first to come makes the file."""
    before = external.file_manifest([str(texts)])
    assert cache_file.parent.stat().st_mode & 0o777 == 0o700
    known = json.loads(cache_file.read_bytes())
    forged = json.dumps({path: [stamp, "f" * 64] for path, (stamp, _) in known.items()})
    cache_file.write_text(forged)
    if forge == "open to all":
        cache_file.parent.chmod(0o777)
    elif forge == "a link":
        cache_file.parent.rename(tmp_path / "elsewhere")
        cache_file.parent.symlink_to(tmp_path / "elsewhere")
    elif os.getuid() != 0:
        pytest.skip("only root can give a folder away")
    else:
        os.chown(cache_file.parent, 12345, 12345)
    assert external.file_manifest([str(texts)]) == before
    assert cache_file.read_text() == forged


def test_a_cache_that_cannot_be_written_stops_nothing(texts, small_disk, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(small_disk))
    runs.remount(small_disk, "ro")
    assert list(external.file_manifest([str(texts)])) == ["a.txt", "below/b.txt"]
