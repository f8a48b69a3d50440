"""`python -m flows.stage`, what a job runs: it begins only what can be begun, and its exit code says how it ended."""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deployments.dag.page import load_page
from deployments.dag.walk import Handle, Walk
from deployments.views.listing import standing
from flows import stage
from flows.command.show import facts_of
from storage import attempts, durable, locks
from tests.slurm import toy
from tests.slurm.harness import kept_study, toy_study
from tests.storage.runs import small_disk


class Job:
    """A toy study kept below a root, and jobs of its stages in this process."""

    def __init__(self, root: Path, **fields: Any) -> None:
        self.root, self.study = root, toy_study("jobs", **fields)
        self.file = kept_study(root, self.study).file

    def handle(self, name: str = "toy-training") -> Handle:
        walk = Walk(self.root, self.study.name)
        toy.page(self.study, walk)
        return next(handle for handle in walk.handles if handle.stage.name == name)

    def run(self, name: str = "toy-training", **changed: Any) -> int:
        given = {"study_file": self.file, "stage": name, "root": self.root} | changed
        return stage.main([f"--{key.replace('_', '-')}={value}" for key, value in given.items()])

    def hidden_marker(self) -> tuple[Path, Path]:
        """The training's marker under another name, as if NFS did not show it yet, and its own name."""
        marker = self.handle().run.marker_file
        return marker.rename(marker.with_name("unseen")), marker


@pytest.fixture(autouse=True)
def _logger_as_before() -> Iterator[None]:
    logger = logging.getLogger("ratchet")
    before = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate, logger.level = before


def test_a_study_is_done_stage_by_stage_and_again_is_no_work(tmp_path):
    job = Job(tmp_path)
    for name in ("toy-training", "toy-report"):
        assert job.run(name, fingerprint=job.handle(name).run.fingerprint) == 0
        assert job.handle(name).finished
    marker = job.handle().run.marker_file.stat()
    assert job.run() == 0 and job.handle().run.marker_file.stat() == marker
    assert (attempts.newest(job.handle().run.attempts) or {})["attempt"] == 1


def test_an_attempt_that_is_to_be_continued_and_one_that_failed_differ_in_the_exit_code(tmp_path):
    obstacle = tmp_path / "obstacle"
    obstacle.touch()
    job = Job(tmp_path / "runs", check_fails_while=str(obstacle))
    assert job.run() == 1
    obstacle.unlink()
    settings = job.study.training.execution.model_copy(update={"max_steps_per_run": 2})
    training = job.study.training.model_copy(update={"execution": settings})
    job.study = job.study.model_copy(update={"training": training})
    job.file = kept_study(job.root, job.study).file
    codes = [job.run()]
    while codes[-1] == 75:
        codes.append(job.run())
    assert codes[-1] == 0 and codes.count(75) >= 2


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"stage": "toy-repot"}, "no stage 'toy-repot' on this page: toy-training, toy-report"),
        ({"stage": "toy-report"}, "reads what is not finished: toy-training"),
        ({"fingerprint": "ab" * 32}, "changed since it was dispatched; restore that, or start the study again"),
        ({"study_file": "/nowhere/study.yaml"}, "no study file /nowhere/study.yaml"),
    ],
)
def test_what_cannot_begin_is_bad_input_and_leaves_no_attempt(tmp_path, capsys, monkeypatch, changed, told):
    monkeypatch.setattr(stage, "INPUTS_SECONDS", 0.0)
    job = Job(tmp_path)
    assert job.run(**changed) == 2
    assert told in capsys.readouterr().err
    assert not job.handle().run.attempts.exists()


SCRIPTED = """
import ratchet as r

@r.stage(needs="cpu", torch=False)
def script(run, train: r.Script = r.Script(path="train.py")):
    run.command("python", train.path, checkpoints="last", resume=["last"], leaves=["end"])
    return {}

@r.study
def scripted():
    return script()
"""


def test_a_script_that_was_edited_between_two_jobs_is_named_and_the_run_tells_why_it_stopped(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    script = "import sys; open('end' if sys.argv[1:] else 'last', 'w').write('1'); sys.exit(not sys.argv[1:])"
    Path("train.py").write_text(script)
    Path("scripted.py").write_text(SCRIPTED)
    page = load_page("scripted.py")
    kept = kept_study(tmp_path / "runs", page.model(name="scripted"), page)
    (handle,) = kept.handles
    given = ["--stage=scripted-script", f"--study-file={kept.file}", f"--root={tmp_path / 'runs'}"]
    given.append(f"--fingerprint={handle.run.fingerprint}")
    assert stage.main(given) == 1, "it ends without `end`, and has a checkpoint"
    Path("train.py").write_text(script + "  # a comment")
    assert stage.main(given) == 2
    assert "train.script.train.py of scripted-script changed since it was started" in capsys.readouterr().err
    Path("train.py").write_text(script)
    state, stands = standing(handle.run)
    assert state == "not finished" and stands.startswith("bad input in attempt 2: train.script.train.py of"), stands
    assert [*facts_of(handle.run)["attempts"]][-1]["record"]["exit_code"] == 2
    assert stage.main(given) == 0, "with the script put back it goes on"


def test_an_error_of_ours_before_the_attempt_has_a_code_of_its_own(tmp_path, monkeypatch, capsys):
    job = Job(tmp_path)
    monkeypatch.setattr(stage, "attempt", lambda *_: 1 / 0)
    assert job.run() == stage.ENDED_BEFORE
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_disk_without_room_for_a_record_has_an_exit_code_of_its_own(tmp_path, monkeypatch, capsys):
    with small_disk(tmp_path / "disk", "size=32m") as disk:
        job = Job(disk)
        filled = disk / "filled"
        with suppress(OSError), filled.open("wb", buffering=0) as file:
            while file.write(b"\0" * 4096):
                pass
        assert job.run() == stage.DISK_FULL
        assert "No space left on device" in capsys.readouterr().err
        filled.unlink()
        assert job.run() == 0

    def full(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded", "/runs")

    monkeypatch.setattr(stage, "attempt", full)
    assert Job(tmp_path / "quota").run() == stage.DISK_FULL


def test_an_input_that_this_host_does_not_see_yet_is_checked_again(tmp_path, monkeypatch):
    """An NFS client that has just listed the folder knows for up to a minute nothing of what another host wrote."""
    job = Job(tmp_path)
    assert job.run() == 0
    unseen, marker = job.hidden_marker()
    monkeypatch.setattr(stage.time, "sleep", lambda seconds: unseen.rename(marker))
    assert job.run("toy-report") == 0


def test_a_job_that_comes_after_the_end_on_another_host_sees_its_marker(tmp_path, monkeypatch):
    job = Job(tmp_path)
    assert job.run() == 0
    unseen, marker = job.hidden_marker()
    monkeypatch.setattr(durable, "refresh", lambda folder: unseen.exists() and unseen.rename(marker))
    assert job.run() == 0
    assert [file.name for file in job.handle().run.attempts.glob("*.json")] == ["0001.json"], (
        "the work was not repeated"
    )


def test_a_held_run_directory_is_waited_for_and_then_told(tmp_path, monkeypatch, capsys):
    job = Job(tmp_path)
    folder = job.handle().run.path / "locks"
    folder.mkdir(parents=True)
    lock = locks.acquire(folder)
    waited: list[float] = []
    monkeypatch.setattr(stage.time, "sleep", waited.append)
    monkeypatch.setattr(stage, "HELD_MINUTES", 0.001)
    assert job.run() == stage.HELD
    assert waited and f"held by a live process: pid {os.getpid()}" in capsys.readouterr().err
    monkeypatch.setattr(stage, "HELD_MINUTES", 5)
    monkeypatch.setattr(stage.time, "sleep", lambda seconds: lock.release())
    assert job.run() == 0, "it goes on as soon as the other one lets go"
