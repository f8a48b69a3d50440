"""What strangers made: names in their files lead to nothing outside the run directory, and through no link."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import command
from storage import durable, locks, markers
from storage.errors import BadInput
from storage.inside import inside
from storage.run_directory import RunDirectory
from tests.storage import runs

SECRET = "root:x:0:0:a secret of who looks\n"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Of a stranger, whose folder has a file beside its root."""
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / ".bashrc").write_text("the stranger's")
    found = runs.run_of(tmp_path / "stranger" / "runs")
    runs.fill(found)
    durable.write_json(found.stage_file, durable.read_json(found.stage_file) | {"inputs": {}, "configuration": {}})
    runs.finish(found, {})
    return found


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Of who looks at it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / ".bashrc").write_text("mine")
    (tmp_path / "home" / "secret").write_text(SECRET)
    return tmp_path / "home"


def ratchet(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """Exit code and all that is said."""
    capsys.readouterr()
    code = command.ratchet([str(word) for word in words])
    said = capsys.readouterr()
    return code, said.out + said.err


def lists(run: RunDirectory, name: str, file: Path) -> None:
    """The stranger's marker, whose digests all hold, lists `file` under this name too."""

    def change(marker: dict[str, Any]) -> None:
        marker["outputs"][name] = markers._describe(file)
        marker["outputs_digest"] = markers.outputs_digest(marker["outputs"])

    runs.rewrite_marker(run, change, sign=True)


# ------------------------------------------------------------------------------------- names, and what is refused


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../b", "a/../b", "/etc/passwd", "//etc/passwd", "a\0b", None, 3, ["a"]]
)
def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: Any) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").touch()
    with pytest.raises(BadInput, match=r"names no"):
        inside(tmp_path, name)


def test_a_name_is_that_of_a_regular_file_or_of_a_folder_and_leads_through_no_link(tmp_path: Path) -> None:
    (tmp_path / "disk" / "root" / "a").mkdir(parents=True)
    (tmp_path / "runs").symlink_to("disk/root")  # a root on a scratch disk
    root = tmp_path / "runs"
    (root / "a" / "file").touch()
    (root / "link").symlink_to("a/file")
    (root / "linked").symlink_to("a")
    assert inside(root, "a/file") == root / "a" / "file" and inside(root, "a", folder=True) == root / "a"
    for name, folder in (("a", False), ("a/file", True), ("a/file/b", False), ("link", False), ("linked/file", False)):
        with pytest.raises(BadInput, match=r"no folder|no regular file|symbolic link"):
            inside(root, name, folder)
    with pytest.raises(FileNotFoundError):
        inside(root, "a/other")


# ----------------------------------------------------------------------------------------------- verify and export


def outside(run: RunDirectory, home: Path) -> str:
    name = "figures/../../../../../.bashrc"
    (run.path / "figures").mkdir()
    lists(run, name, run.path / name)
    return name


def absolute(run: RunDirectory, home: Path) -> str:
    lists(run, str(home / "secret"), home / "secret")
    return str(home / "secret")


def linked_file(run: RunDirectory, home: Path) -> str:
    (run.path / "table.md").symlink_to(home / "secret")
    lists(run, "table.md", home / "secret")
    return "table.md"


def linked_folder(run: RunDirectory, home: Path) -> str:
    (run.path / "figures").symlink_to(home)
    lists(run, "figures/secret", home / "secret")
    return "figures/secret"


@pytest.mark.parametrize("forged", [outside, absolute, linked_file, linked_folder])
def test_export_wrote_and_read_where_a_marker_said(
    run: RunDirectory, home: Path, capsys: pytest.CaptureFixture[str], forged: Callable[[RunDirectory, Path], str]
) -> None:
    name = forged(run, home)
    code, said = ratchet(capsys, "verify", run.root)
    assert code == 1 and "REFUSED" in said and name in said
    code, said = ratchet(capsys, "export", run.root, home / "results")
    assert code == 1 and name in said and not (home / "results").exists()
    assert (home / ".bashrc").read_text() == "mine"
    assert "not finished" in ratchet(capsys, "list", run.root)[1]


def test_a_marker_was_written_for_a_link(run: RunDirectory, home: Path) -> None:
    (run.path / "model" / "more").symlink_to(home / "secret")
    (run.path / "table.md").symlink_to(home / "secret")
    before = run.marker_file.read_bytes()
    lock = locks.acquire(run.path / "locks")
    for outputs in (["model"], ["table.md"], ["../../../../.bashrc"]):
        with pytest.raises(BadInput, match=r"symbolic link|has no \.\."):
            markers.write(run, outputs, {}, lock)
    lock.release()
    assert run.marker_file.read_bytes() == before
    (run.path / "table.md").unlink()
    assert "model/more was added after the stage finished" in markers.check_outputs(run).reason


def test_a_linked_marker_was_believed(run: RunDirectory, tmp_path: Path) -> None:
    run.marker_file.rename(tmp_path / "COMPLETE.json")
    run.marker_file.symlink_to(tmp_path / "COMPLETE.json")
    assert "symbolic link" in markers.check_outputs(run).reason


# ------------------------------------------------------------------------------------------------- stage inputs


@pytest.mark.parametrize(
    "reads",
    [
        {"setup": {"stage": "../../elsewhere/setup", "fingerprint": "a" * 64}},
        {"setup": {"stage": "setup", "fingerprint": "../../etc"}},
        {"setup": {"stage": "..", "fingerprint": "a" * 64}},
        {"setup": {"stage": ["setup"], "fingerprint": "a" * 64}},
        {"setup": "setup"},
        ["setup"],
    ],
)
def test_stage_inputs_led_out_of_the_root(
    run: RunDirectory, capsys: pytest.CaptureFixture[str], tmp_path: Path, reads: Any
) -> None:
    other = runs.finished(run.root, "base")
    durable.write_json(run.stage_file, durable.read_json(run.stage_file) | {"inputs": reads})
    lists(run, "stage.json", run.stage_file)
    code, said = ratchet(capsys, "verify", run.root)
    assert code == 1 and f"REFUSED     {run.path.relative_to(run.root)}: stage.json names as what it reads" in said
    assert f"verified    {other.path.relative_to(run.root)}" in said
    listed = ratchet(capsys, "list", run.root)[1]
    assert "1 of 2 begun stages are finished" in listed and f"unreadable   {run.stage} {run.path.name}" in listed
    code, said = ratchet(capsys, "show", run.path)
    assert code == 2 and "names as what it reads" in said and "Traceback" not in said
