"""The record of each attempt, and what an attempt at a real stage leaves behind when its disk or its lock fails."""

import errno
import importlib.metadata
import json
import os
import subprocess
import time

import pytest

from storage import attempts, durable, generations, locks, markers
from tasks.stage.outcome import in_words
from tests.storage import runs, toy

# --------------------------------------------------------------------------------------------------- records


def test_a_record_says_at_the_start_who_works_with_what(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    attempts.AttemptRecord(tmp_path, 7, {"device": "cpu"}, [0, 0])
    record = json.loads((tmp_path / "0007.json").read_bytes())
    assert (record["attempt"], record["pid"], record["slurm_job_id"]) == (7, os.getpid(), "4711")
    assert record["host"] == os.uname().nodename and record["boot_id"]
    assert record["execution"] == {"device": "cpu"}
    assert record["versions"]["torch"] == importlib.metadata.version("torch")
    assert record["started_at"] > 1.7e9
    assert record["ended_at"] is record["end_state"] is record["exit_code"] is record["diagnosis"] is None


def test_a_record_keeps_what_was_noted_when_it_ends(tmp_path):
    record = attempts.AttemptRecord(tmp_path, 1, {}, [0, 0])
    record.note(numerics={"device": "cpu"})
    record.end("check_failed", 1, {"category": "check failed"})
    record = attempts.newest(tmp_path)
    assert record["numerics"] == {"device": "cpu"}
    assert (record["end_state"], record["exit_code"], record["diagnosis"]) == (
        "check_failed",
        1,
        {"category": "check failed"},
    )
    assert record["ended_at"] >= record["started_at"]


def test_the_newest_record_is_that_of_the_highest_number(tmp_path):
    assert attempts.newest(tmp_path / "nowhere") is None and attempts.newest(tmp_path) is None
    for number in (2, 10, 9):
        attempts.AttemptRecord(tmp_path, number, {}, [0, 0])
    (tmp_path / "0010.log").write_text("")
    assert attempts.newest(tmp_path)["attempt"] == 10


def test_a_record_that_cannot_be_read_is_none(tmp_path):
    attempts.AttemptRecord(tmp_path, 1, {}, [0, 0])
    (tmp_path / "0002.json").write_bytes(b"{")
    assert attempts.newest(tmp_path) is None


def test_the_source_is_named_by_commit_and_the_digest_of_uncommitted_changes(tmp_path, monkeypatch):
    def git(*arguments):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    git("init")
    (tmp_path / "attempts.py").write_text("one")
    git("add", ".")
    git("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-m", "first")
    monkeypatch.setattr(attempts, "__file__", str(tmp_path / "attempts.py"))
    read = attempts.source_version.__wrapped__
    clean = read()
    assert len(clean["commit"]) == 40 and clean["dirty_digest"] is None
    (tmp_path / "attempts.py").write_text("two")
    dirty = read()
    assert dirty["commit"] == clean["commit"] and len(dirty["dirty_digest"]) == 64


def test_a_source_outside_git_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(attempts, "__file__", str(tmp_path / "attempts.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert attempts.source_version.__wrapped__() == {"commit": None, "dirty_digest": None}


# ------------------------------------------------------------------------------------------------ end states


def left_by(root):
    """(the attempt's record, the run) after one attempt at the toy stage."""
    run = toy.run_directory(root)
    return attempts.newest(run.attempts), run


@pytest.mark.parametrize(
    ("function", "end_state", "exit_code", "category"),
    [
        ("fails_its_check", "check_failed", 1, "check failed"),
        ("is_not_finite", "numerical_failure", 1, "numerical failure"),
        ("finds_bad_input", "bad_input", 2, "bad input"),
        ("is_interrupted", "interrupted", 130, None),
        ("runs_out_of_time", "out_of_time", 75, None),
        ("breaks", "crashed", 1, "crash"),
        ("names_an_output_that_is_not_there", "crashed", 1, "crash"),
    ],
)
def test_an_attempt_that_does_not_finish_says_how_it_ended_and_leaves_no_marker(
    tmp_path, function, end_state, exit_code, category
):
    outcome = toy.try_once(tmp_path, function)
    record, run = left_by(tmp_path)
    assert (outcome.end_state, outcome.exit_code) == (end_state, exit_code)
    assert (record["end_state"], record["exit_code"]) == (end_state, exit_code)
    assert (record["diagnosis"] or {}).get("category") == category
    assert not run.marker_file.exists()
    assert (run.path / "locks" / "1.released").exists()
    level = "ERROR" if category else "INFO"
    assert f"{level} ratchet.toy: {in_words(end_state)}" in (run.attempts / "0001.log").read_text()

    assert toy.try_once(tmp_path).end_state == "finished"
    assert markers.check(run, {}, full=True).holds
    raised = end_state in generations.STARTED_AGAIN_AFTER
    assert generations.current(run)["generation"] == raised


def test_a_finished_attempt_lists_what_it_wrote_and_nothing_else(tmp_path):
    assert toy.try_once(tmp_path).exit_code == 0
    record, run = left_by(tmp_path)
    assert sorted(runs.marker_of(run)["outputs"]) == ["metrics.jsonl", "model/weights", "result.json", "stage.json"]
    assert record["end_state"] == "finished" and record["diagnosis"] is None


def test_a_run_held_by_a_live_process_is_not_touched(tmp_path):
    run = toy.run_directory(tmp_path)
    lock = toy.take_over(run)
    outcome = toy.try_once(tmp_path)
    lock.release()
    assert (outcome.end_state, outcome.exit_code) == ("held", 2)
    assert f"pid {os.getpid()} on {os.uname().nodename}" in outcome.message
    assert {path.name for path in run.path.iterdir()} == {"locks"}


def test_a_refused_marker_makes_the_stage_run_again_and_the_generation_says_why(tmp_path):
    toy.try_once(tmp_path)
    run = toy.run_directory(tmp_path)
    (run.path / "model" / "weights").write_bytes(b"edited")
    assert toy.try_once(tmp_path).end_state == "finished"
    assert generations.current(run)["history"] == [
        {
            "generation": 1,
            "reason": "the marker was refused: model/weights has 6 bytes, the marker says 400000",
            "after_attempt": 1,
        }
    ]
    assert markers.check(run, {}, full=True).holds


@pytest.mark.parametrize("function", ["is_taken_over", "is_taken_over_at_the_end"])
def test_an_attempt_that_was_taken_over_commits_neither_output_nor_marker(tmp_path, function):
    outcome = toy.try_once(tmp_path, function)
    _, run = left_by(tmp_path)
    assert outcome.exit_code == 1 and "lock 1 was taken over by lock 2" in outcome.message
    assert not run.marker_file.exists()
    if function == "is_taken_over":
        assert not (run.path / "model").exists()
    assert not runs.temporaries(run.path)


def test_an_attempt_whose_root_was_removed_is_told_so_and_not_that_another_goes_on(tmp_path):
    outcome = toy.try_once(tmp_path / "runs", "loses_its_root")
    assert outcome.exit_code == 1 and outcome.diagnosis.category == "directory gone"
    assert str(toy.run_directory(tmp_path / "runs").path) in outcome.text and "is lost" in outcome.text


def test_an_attempt_that_was_taken_over_leaves_the_new_holders_result_alone(tmp_path):
    toy.try_once(tmp_path, "is_taken_over_at_the_end")
    assert durable.read_json(toy.run_directory(tmp_path).result_file) == {"of": "the new holder"}


def test_a_marker_that_another_process_wrote_in_the_meantime_is_taken_as_it_is(tmp_path):
    toy.try_once(tmp_path)
    run = toy.run_directory(tmp_path)
    before = (run.path / "model" / "weights").stat().st_ino
    assert toy.try_once(tmp_path).end_state == "finished"
    assert markers.check(run, {}, full=True).holds
    assert (run.path / "model" / "weights").stat().st_ino == before, "the work was done twice"
    assert generations.current(run)["generation"] == 0


def test_an_attempt_sweeps_away_what_a_killed_one_left(tmp_path):
    run = toy.run_directory(tmp_path)
    (run.path / ".tmp-model-77-1").mkdir(parents=True)
    (run.path / ".tmp-model-77-1" / "weights").write_bytes(b"half")
    (run.path / ".tmp-result.json-77-1").write_bytes(b"{")
    assert toy.try_once(tmp_path).end_state == "finished"
    assert not runs.temporaries(run.path)


def test_nothing_temporary_is_left_when_the_marker_is_written(tmp_path, monkeypatch):
    """Who is killed behind it has no attempt after it that would sweep."""
    write, left = markers.write, []
    monkeypatch.setattr(
        markers, "write", lambda run, *given: (left.append(runs.temporaries(run.path)), write(run, *given))
    )
    assert toy.try_once(tmp_path).end_state == "finished" and left == [[]]


# --------------------------------------------------------------------------------- full and read-only disks


def assert_disk_full(outcome, root, named):
    record, run = left_by(root)
    assert (outcome.end_state, outcome.exit_code) == ("crashed", 1)
    assert outcome.diagnosis.category == "disk full"
    assert str(run.path / named) in outcome.message
    assert "Free space" in outcome.diagnosis.resolution
    assert not run.marker_file.exists() and not (run.path / named).exists()
    assert not runs.temporaries(run.path)
    assert record["end_state"] == "crashed" and record["diagnosis"] == outcome.diagnosis.as_dict()
    return run


@pytest.mark.parametrize("function", ["finishes", "saves_a_checkpoint"])
def test_a_file_size_limit_ends_an_attempt_as_disk_full_and_a_later_one_finishes(tmp_path, function):
    with runs.files_no_larger_than(100_000):
        outcome = toy.try_once(tmp_path, function)
    run = assert_disk_full(outcome, tmp_path, "model" if function == "finishes" else "checkpoints/2")
    assert toy.try_once(tmp_path, function).end_state == "finished"
    assert markers.check(run, {}, full=True).holds
    assert generations.current(run)["generation"] == 0, "a full disk is not a new start"


@pytest.mark.parametrize("function", ["finishes", "saves_a_checkpoint"])
def test_a_full_disk_ends_an_attempt_as_disk_full_and_a_later_one_finishes(small_disk, function):
    runs.remount(small_disk, "size=256k")
    outcome = toy.try_once(small_disk, function)
    run = assert_disk_full(outcome, small_disk, "model" if function == "finishes" else "checkpoints/2")
    runs.remount(small_disk, "size=4m")
    assert toy.try_once(small_disk, function).end_state == "finished"
    assert markers.check(run, {}, full=True).holds


def test_a_disk_that_another_program_filled_ends_an_attempt_with_an_outcome(small_disk):
    """Nothing at all can be written but the end of the record, for which room was kept."""
    outcome = toy.try_once(small_disk, "finds_its_disk_filled")
    record, run = left_by(small_disk)
    assert record["end_state"] == "crashed" and record["diagnosis"]["category"] == "disk full", "not: was killed"
    assert (outcome.end_state, outcome.exit_code) == ("crashed", 1)
    assert outcome.diagnosis.category == "disk full"
    assert not run.marker_file.exists() and not runs.temporaries(run.path)
    assert durable.read_json(run.stage_file)["stage"] == "toy"
    (small_disk / "filler").unlink()
    runs.remount(small_disk, "size=4m")
    assert toy.try_once(small_disk).end_state == "finished"


def test_a_disk_that_was_full_before_is_reported_as_a_full_disk(small_disk):
    toy.fill(small_disk)
    outcome = toy.try_once(small_disk)
    assert "No space left on device" in outcome.message
    assert (outcome.end_state, outcome.diagnosis.category) == ("crashed", "disk full")


def test_a_read_only_disk_is_bad_input_that_names_the_directory(small_disk):
    runs.remount(small_disk, "ro")
    outcome = toy.try_once(small_disk)
    run = toy.run_directory(small_disk)
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert outcome.message == f"cannot write in the run directory {run.path}: Read-only file system"
    assert "\n" not in outcome.message
    runs.remount(small_disk, "rw,size=4m")
    assert toy.try_once(small_disk).end_state == "finished"


def test_a_run_directory_that_became_read_only_is_bad_input_that_names_it(small_disk):
    """As above, but with a lock folder that is there already."""
    toy.try_once(small_disk, "runs_out_of_time")
    run = toy.run_directory(small_disk)
    before = runs.tree(small_disk)
    runs.remount(small_disk, "ro")
    outcome = toy.try_once(small_disk)
    assert (outcome.end_state, outcome.exit_code) == ("bad_input", 2)
    assert outcome.message == f"cannot write in the run directory {run.path}: Read-only file system"
    assert runs.tree(small_disk) == before


def test_a_disk_that_becomes_read_only_under_an_attempt_ends_it_with_an_outcome(small_disk):
    outcome = toy.try_once(small_disk, "finds_its_disk_read_only")
    run = toy.run_directory(small_disk)
    assert outcome.exit_code == 1 and "Read-only file system" in outcome.message
    assert not run.marker_file.exists()
    assert locks.highest(run.path / "locks") == 1


def test_the_processor_time_of_an_attempt_is_its_own_where_several_work_in_one_process(tmp_path):
    used = []
    for number in (1, 2):
        record = attempts.AttemptRecord(tmp_path, number, {}, [0, 0])
        began = time.process_time()
        while number == 1 and time.process_time() < began + 0.3:
            sum(range(1000))
        record.end("finished", 0, None)
        used.append(durable.read_json(tmp_path / f"000{number}.json")["cpu_seconds"])
    assert used[0] >= 0.3 > used[1] + 0.1


def test_a_disk_without_links_is_named_with_the_call_and_what_to_take_instead(tmp_path, monkeypatch):
    """SMB, exFAT and some FUSE."""

    def refused(*names):
        raise PermissionError(errno.EPERM, "Operation not permitted", *map(str, names))

    monkeypatch.setattr(os, "link", refused)
    outcome, run = toy.try_once(tmp_path), toy.run_directory(tmp_path)
    assert outcome.end_state == "bad_input" and f"the disk of {run.path} refuses link()" in outcome.message
    assert "Give --root a folder on another disk" in outcome.message


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EIO])
def test_a_disk_that_does_not_answer_is_a_sentence_and_is_tried_again(tmp_path, monkeypatch, number):
    def unanswered(*_, **__):
        raise OSError(number, os.strerror(number), "/disk/file")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", unanswered)
        outcome = toy.try_once(tmp_path)
    assert (outcome.end_state, outcome.retryable) == ("crashed", True)
    assert "the disk did not answer" in outcome.message and "/disk/file" in outcome.message
    assert "Traceback" not in outcome.text and "is tried again here" in outcome.text
