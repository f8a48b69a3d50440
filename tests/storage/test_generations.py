"""The generation is raised when a stage is begun again on purpose, once, and says why."""

import json
import shutil

import pytest

from storage import attempts, durable, generations, locks
from tests.storage import runs

WEIGHTS = "model/weights.safetensors"


def begin(run, inputs=None):
    """What an attempt does first: lock, check the marker, record itself. Returns the present generation."""
    lock = locks.acquire(run.path / "locks")
    generations.raise_for_new_attempt(run, runs.INPUTS if inputs is None else inputs, lock)
    record = attempts.AttemptRecord(run.attempts, lock.number, {}, [0, 0])
    return lock, record


def end(begun, end_state):
    lock, record = begun
    record.end(end_state, 1, None)
    lock.release()


def reasons(run):
    now = generations.current(run)
    assert [entry["generation"] for entry in now["history"]] == list(range(1, now["generation"] + 1))
    return [entry["reason"] for entry in now["history"]]


@pytest.fixture
def run(tmp_path):
    run = runs.run_of(tmp_path)
    runs.fill(run)
    return run


def test_a_first_attempt_has_generation_zero(run):
    begin(run)[0].release()
    assert generations.current(run) == {"generation": 0, "history": []}
    assert not run.generation_file.exists()


@pytest.mark.parametrize("end_state", ["check_failed", "numerical_failure", "not_learning", "bad_input", "interrupted"])
def test_starting_again_what_needed_a_person_raises_it_once(run, end_state):
    end(begin(run), end_state)
    assert generations.current(run)["generation"] == 0, "ending does not raise it"
    end(begin(run), "out_of_time")
    assert reasons(run) == [f"started again after attempt 1 ended {end_state}"]
    end(begin(run), "out_of_time")
    assert len(reasons(run)) == 1, "the continuation of the new start is not another start"


@pytest.mark.parametrize("end_state", ["out_of_time", "sigterm", "crashed"])
def test_a_continuation_does_not_raise_it(run, end_state):
    for _ in range(3):
        end(begin(run), end_state)
    assert generations.current(run)["generation"] == 0


def test_an_attempt_that_was_killed_does_not_raise_it(run):
    begin(run)[0].release()  # its record has no end state
    begin(run)[0].release()
    assert generations.current(run)["generation"] == 0


@pytest.mark.parametrize("content", [{"x": 1}, {}, {"attempt": None}, {"attempt": "1"}, [1]])
def test_a_record_that_says_no_attempt_is_named_and_ends_no_start(run, caplog, content):
    end(begin(run), "check_failed")
    file = run.attempts / "0001.json"
    file.write_text(json.dumps(content))
    end(begin(run), "crashed")
    assert f"{file} cannot be read as the record of an attempt" in caplog.text
    assert [record["attempt"] for record in attempts.records(run.attempts)] == [2]
    generations.begin_anew(run)


def test_a_start_that_a_dispatch_raised_it_for_is_not_counted_again_by_its_attempt(run):
    end(begin(run), "check_failed")
    assert generations.raised_for_dispatch(run, runs.INPUTS, "a person started it again") == 1
    end(begin(run), "check_failed")
    assert reasons(run) == ["a person started it again"]
    end(begin(run), "crashed")
    assert len(reasons(run)) == 2, "that attempt's own failure was started again"


def test_every_new_start_raises_it_by_one(run):
    for end_state in ("check_failed", "crashed", "interrupted", "check_failed", "finished"):
        end(begin(run), end_state)
    assert reasons(run) == [
        f"started again after attempt {n} ended {s}"
        for n, s in ((1, "check_failed"), (3, "interrupted"), (4, "check_failed"))
    ]


# ------------------------------------------------------------------------------------------- refused markers


def test_a_refused_marker_is_removed_and_raises_it_once_with_the_reason(run):
    runs.finish(run)
    run.marker_file.write_bytes(b"")
    end(begin(run), "crashed")
    assert not run.marker_file.exists()
    assert len(reasons(run)) == 1
    assert "the marker was refused: the marker cannot be read" in reasons(run)[0]
    end(begin(run), "crashed")
    assert len(reasons(run)) == 1


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda run: durable.write_json(run.result_file, {"loss": 0.0}), "result.json"),
        (lambda run: runs.edit_unnoticed(run.path / WEIGHTS), f"{WEIGHTS} was edited"),
    ],
    ids=["seen at once", "that only the full check finds"],
)
def test_the_reason_is_the_edit_and_not_that_a_new_attempt_began(run, edit, said):
    runs.finish(run)
    edit(run)
    end(begin(run), "crashed")
    assert said in reasons(run)[0]


def test_the_reason_names_an_input_that_changed(run):
    runs.finish(run)
    end(begin(run, {"setup": "b" * 64}), "crashed")
    assert "the input 'setup' is not the one that was read" in reasons(run)[0]


def test_a_marker_is_not_removed_before_its_refusal_is_on_record(run):
    """Killed, or a full disk, between the two: the next attempt must still find that it begins anew."""
    runs.finish(run)
    run.marker_file.write_bytes(b"")
    lock = locks.acquire(run.path / "locks")
    with runs.files_no_larger_than(10), pytest.raises(OSError, match=r"File too large.*generation\.json"):
        generations.raise_for_new_attempt(run, runs.INPUTS, lock)
    lock.release()
    assert run.marker_file.exists() and not run.generation_file.exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"{}"])
def test_a_generation_file_that_cannot_be_read_starts_over(run, content):
    run.generation_file.write_bytes(content)
    assert generations.current(run) == {"generation": 0, "history": []}


def test_a_disk_that_does_not_give_the_file_now_is_not_generation_zero(run, monkeypatch):
    """The number of a generation long past would find a flow run long ended."""

    def stale(path):
        raise OSError(116, "Stale file handle", str(path))

    monkeypatch.setattr(durable, "read_json", stale)
    with pytest.raises(OSError, match="Stale"):
        generations.current(run)


def test_a_copied_run_keeps_its_generation(run, tmp_path):
    end(begin(run), "check_failed")
    end(begin(run), "crashed")
    shutil.copytree(run.root, tmp_path / "copy")
    assert json.loads(run.generation_file.read_bytes())["generation"] == 1
    copy = type(run)(tmp_path / "copy", run.study, run.stage, run.fingerprint)
    assert generations.current(copy) == generations.current(run)
