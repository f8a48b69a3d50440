"""The source that a job runs: a copy that editing the checkout does not change."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from deployments.slurm.study import snapshot
from deployments.slurm.study.snapshot import REPOSITORY, ROOMS, stage_source, staged
from storage import attempts, durable


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    repository = tmp_path / "checkout"
    for room in ROOMS:
        (repository / room / "deep").mkdir(parents=True)
        (repository / room / "__init__.py").write_text("")
        (repository / room / "deep" / "module.py").write_text(f"ROOM = {room!r}\n")
        (repository / room / "__pycache__").mkdir()
        (repository / room / "__pycache__" / "module.pyc").write_bytes(b"x")
    (repository / "flows" / "profile.yaml").write_text("seed: 1\n")
    (repository / "deployments" / "sites").mkdir()
    (repository / "deployments" / "sites" / "here.yaml").write_text("root: /shared\n")
    (repository / "tests").mkdir()
    (repository / "tests" / "test_it.py").write_text("")
    return repository


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_the_rooms_are_copied_as_they_are_with_the_version_beside_them(checkout, tmp_path):
    copy = stage_source(tmp_path / "sources", repository=checkout)
    expected = {f"{room}/{name}" for room in ROOMS for name in ("__init__.py", "deep/module.py")}
    assert names(copy) == expected | {"flows/profile.yaml", attempts.SOURCE_FILE}
    assert (copy / "tasks" / "deep" / "module.py").read_text() == "ROOM = 'tasks'\n"
    assert durable.read_json(copy / attempts.SOURCE_FILE) == attempts.source_version()


def test_nothing_that_the_rooms_hold_is_left_behind(tmp_path):
    """Seen: a report's `report.md` was not copied, and the last stage of every study failed on SLURM."""
    tracked = subprocess.check_output(["git", "ls-files", *ROOMS], cwd=REPOSITORY, text=True).split()
    wanted = {name for name in tracked if {"sites", "systemd"}.isdisjoint(name.split("/"))}  # which no job reads
    assert len(wanted) > 300 and not wanted - names(stage_source(tmp_path))


def test_the_same_source_is_staged_once_and_another_beside_it(checkout, tmp_path, monkeypatch):
    sources = tmp_path / "sources"
    first = stage_source(sources, repository=checkout)
    inode = first.stat().st_ino
    (checkout / "tests" / "test_it.py").write_text("changed")
    (checkout / "deployments" / "sites" / "here.yaml").write_text("root: /other\n")
    with monkeypatch.context() as patched:
        patched.delattr(durable, "new_directory")  # nothing is written
        assert (
            stage_source(sources, repository=checkout) == first == staged(sources, repository=checkout)
            and first.stat().st_ino == inode
        )
    (checkout / "flows" / "profile.yaml").write_text("seed: 2\n")
    second = stage_source(sources, repository=checkout)
    assert second != first and (first / "flows" / "profile.yaml").read_text() == "seed: 1\n"
    (checkout / "flows" / "profile.yaml").rename(checkout / "flows" / "profile2.yaml")
    assert staged(sources, repository=checkout) not in (first, second), "a file's name counts"


def test_to_ask_where_it_would_be_writes_nothing(checkout, tmp_path):
    assert staged(tmp_path / "sources", repository=checkout).parent == tmp_path / "sources"
    assert not (tmp_path / "sources").exists()


def test_of_many_that_stage_at_once_none_replaces_what_another_gave_to_a_job(checkout, tmp_path):
    start, found = threading.Barrier(6), []

    def stage() -> None:
        start.wait()
        copy = stage_source(tmp_path / "sources", repository=checkout)
        found.append((copy, copy.stat().st_ino))

    threads = [threading.Thread(target=stage) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6 and len(set(found)) == 1
    assert [path.name for path in (tmp_path / "sources").iterdir()] == [found[0][0].name], "nothing is left over"


def test_half_a_copy_is_never_taken_for_one(checkout, tmp_path, monkeypatch):
    def dies(moment: str, path: Path) -> None:
        if moment == "written" and path.parent.name == "sources":
            raise KeyboardInterrupt

    monkeypatch.setattr(durable, "reached", dies)
    with pytest.raises(KeyboardInterrupt):
        stage_source(tmp_path / "sources", repository=checkout)
    assert list((tmp_path / "sources").iterdir()) == []
    monkeypatch.undo()
    assert (stage_source(tmp_path / "sources", repository=checkout) / "flows" / "__init__.py").exists()


def test_python_runs_the_copy_and_not_the_checkout(tmp_path):
    """With an editable install, as here: the working directory comes first."""
    copy = stage_source(tmp_path / "sources")
    code = (
        "import storage.durable, deployments.slurm.pool.pool as p; print(storage.durable.__file__); print(p.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=copy, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [f"{copy}/storage/durable.py", f"{copy}/deployments/slurm/pool/pool.py"]
    assert snapshot.REPOSITORY == REPOSITORY


def test_a_commit_that_is_noted_later_leaves_nothing_else_in_the_copy_of_jobs_at_any_moment(
    checkout, tmp_path, monkeypatch
):
    copy = snapshot.stage_source(tmp_path, repository=checkout)
    seen: list[set[Path]] = []
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda *places: seen.append({*copy.iterdir()}) or rename(*places))
    before = {*copy.iterdir()}
    monkeypatch.setattr(attempts, "source_version", lambda: {"commit": "f00", "dirty_digest": None})
    assert snapshot.stage_source(tmp_path, repository=checkout) == copy
    assert durable.read_json(copy / attempts.SOURCE_FILE)["commit"] == "f00"
    assert seen and all(files == before for files in seen) and {*copy.iterdir()} == before
