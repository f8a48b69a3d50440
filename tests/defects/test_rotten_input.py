"""A stage does not begin on an input that rotted on its disk, and the stage that made it is made again."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from deployments.dag.page import load_page
from deployments.dag.walk import Walk
from flows import command
from flows.command.settings import read_study
from storage import durable, generations, markers
from storage.run_directory import RunDirectory

PAGE = """
import ratchet as r

@r.stage(needs="cpu", torch=False)
def text(run):
    with run.publish("text") as folder:
        (folder / "a.txt").write_text("a text")
    return {}

@r.stage(needs="cpu", torch=False)
def count(run, text, wanted: int = 0):
    return {"letters": len((text.path / "text/a.txt").read_text()), "wanted": wanted}

@r.study
def rots(wanted: int = 0):
    return count(text(), wanted=wanted)
"""


def flip(file: Path) -> None:
    """One bit, with size, time and inode kept."""
    stamps, data = file.stat(), file.read_bytes()
    with file.open("r+b") as opened:
        opened.write(bytes([data[0] ^ 1]) + data[1:])
    os.utime(file, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))


@pytest.fixture
def ratchet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rots.py").write_text(PAGE)

    def run(*words: str) -> tuple[int, str]:
        code = command.ratchet([*words])
        return code, "".join(capsys.readouterr())

    return run


def test_a_stage_refuses_an_input_that_rotted_and_the_same_command_makes_it_again(tmp_path, ratchet):
    assert ratchet("run", "rots.py")[0] == 0
    (file,) = tmp_path.glob("runs/rots/*text*/*/text/a.txt")
    flip(file)
    code, said = ratchet("run", "rots.py", "--set", "wanted=1")
    assert code == 1 and "text/a.txt was edited after the stage finished" in said and "that stage runs again" in said, (
        said
    )
    assert ratchet("run", "rots.py", "--set", "wanted=1")[0] == 0 and file.read_text() == "a text"
    code, said = ratchet("verify", "runs")
    assert code == 0 and "3 of 3 runs verified" in said, said


def test_one_that_was_put_back_is_read_and_one_that_rotted_is_dispatched_again(tmp_path, ratchet):
    """By what SLURM's dispatch asks: the generation, without which Prefect finds the flow run that finished."""
    assert ratchet("run", "rots.py")[0] == 0
    (file,) = tmp_path.glob("runs/rots/*text*/*/text/a.txt")
    flip(file)
    assert ratchet("run", "rots.py", "--set", "wanted=1")[0] == 1
    flip(file)
    assert ratchet("run", "rots.py", "--set", "wanted=1")[0] == 0
    page = load_page(str(tmp_path / "rots.py"))
    flip(file)  # each check reads it since
    walk = Walk(tmp_path / "runs", "rots", read_study(page, None, [], None).execution)
    page.walk(read_study(page, None, [], None), walk)
    made = walk.handles[0]
    assert not made.finished and made.verdict.present
    assert generations.raised_for_dispatch(made.run, {}) == 1 and not made.run.marker_file.exists()


def test_only_the_bytes_tell(tmp_path, ratchet):
    """As before: what is only listed is not read, so that a list stays quick."""
    assert ratchet("run", "rots.py")[0] == 0
    (file,) = tmp_path.glob("runs/rots/*text*/*/text/a.txt")
    described = durable.read_json(file.parents[1] / "stage.json")
    run = RunDirectory(tmp_path / "runs", "rots", described["stage"], described["fingerprint"])
    flip(file)
    assert markers.check(run, {}).holds and not markers.check(run, {}, full=True).holds
    markers.doubt(run)
    assert not markers.check(run, {}).holds
