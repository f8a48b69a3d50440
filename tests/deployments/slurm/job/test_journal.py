"""The journal: what was written is what is read, in order, and what cannot be read is not taken for nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from deployments.slurm.job.journal import End, Journal, Submission
from storage import durable, reading
from tasks.stage.outcome import Diagnosis

ENTRY = Submission(1, "study-train.3fa9c1.1", "flow-run", 1.5, True, 4.0, 8.0, 2, 1, 60, 3, "state", None)
FOUND = Diagnosis("info", "time limit", "it ended", "job 7", "Nothing to do.")
END = End("AwaitingRetry", "it ended", FOUND, 30.0, 6.0, ["n1"], "s1", True, True)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "jobs")


def test_what_was_written_is_read(journal):
    assert journal.all() == [] and journal.next_number() == 1
    journal.write(ENTRY)
    assert journal.all() == [ENTRY] and ENTRY.live
    noted = journal.note_job(ENTRY, "7")
    assert noted == replace(ENTRY, job_id="7") and Journal(journal.folder).all() == [noted]
    ended = journal.note_end(noted, END)
    assert ended.end == END and not ended.live and ended.ended_at > 1.7e9
    assert journal.all() == Journal(journal.folder).all() == [ended]


def test_entries_come_in_the_order_of_their_numbers_beyond_four_digits(journal):
    for number in (10000, 2, 9999, 1):
        journal.write(replace(ENTRY, number=number, flow_run=f"run{number % 2}"))
    assert [entry.number for entry in journal.all()] == [1, 2, 9999, 10000]
    assert [entry.number for entry in journal.of("run0")] == [2, 10000]
    assert journal.next_number() == 10001


@pytest.mark.parametrize("left", ["0007.sbatch", "0007.log", "0007.json", "0007.stop"])
def test_a_number_of_which_anything_is_left_is_not_given_again(journal, left):
    journal.write(ENTRY)
    (journal.folder / left).write_text("{")
    (journal.folder / ".tmp-0009.json-1-2").write_text("half")
    (journal.folder / "notes.txt").write_text("a person's")
    assert journal.next_number() == 8 and journal.all() == [ENTRY]


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '{"number": 2}', '{"end": null, "colour": "blue"}'])
def test_an_entry_that_cannot_be_understood_is_passed_over(journal, text):
    journal.write(ENTRY)
    (journal.folder / "0002.json").write_text(text)
    assert journal.all() == [ENTRY]


def test_an_entry_of_an_earlier_version_is_read(journal):
    journal.folder.mkdir()
    text = '{"number": 1, "name": "a.1", "flow_run": "r", "submitted_at": 1, "automatic": true, "memory_gb": 4'
    (journal.folder / "0001.json").write_text(text + ', "end": null}')
    (entry,) = journal.all()
    assert (entry.name, entry.live, entry.state_id, entry.cancelled) == ("a.1", True, "", False)


def test_a_disk_that_does_not_answer_is_no_empty_journal(journal, monkeypatch):
    journal.write(ENTRY)

    def away(path: Path, *_: object) -> bytes:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(reading, "read_bytes", away)
    with pytest.raises(OSError, match="Stale"):
        journal.all()


def test_the_one_who_writes_knows_what_it_wrote_and_reads_again_what_it_could_not_write(journal, monkeypatch):
    assert journal.of("flow-run") == []
    journal.write(ENTRY)
    with monkeypatch.context() as patched:
        patched.delattr(Path, "read_bytes")
        assert journal.of("flow-run") == [ENTRY] and journal.of("another") == []
        journal.write(replace(ENTRY, number=3, flow_run="another"))
        journal.write(replace(ENTRY, number=2))
        assert [entry.number for entry in journal.of("flow-run")] == [1, 2]

    def full(moment: str, path: Path) -> None:
        if moment == "renamed":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(durable, "reached", full)
    with pytest.raises(OSError, match="No space"):
        journal.note_job(ENTRY, "7")
    assert journal.of("flow-run")[0].job_id == "7", "it stands on the disk all the same"


def test_an_entry_that_ended_is_read_once_and_a_live_one_each_time(journal):
    journal.write(replace(ENTRY, end=END))
    journal.write(replace(ENTRY, number=2))
    assert len(journal.all()) == 2
    Journal(journal.folder).note_end(replace(ENTRY, number=2), END)  # another process
    (journal.folder / "0001.json").write_text("{")
    assert [entry.live for entry in journal.all()] == [False, False]


OLD = """{"number": 2, "name": "mono-s42-train-monotonic.3fa9c1.2", "flow_run": "0b0f", "submitted_at": 1795350000.5,
"automatic": true, "memory_gb": 32.0, "memory_cap_gb": 64.0, "cpus": 8, "gpus": 1, "time_limit_minutes": 240,
"attempts_before": 1, "state_id": "s1", "job_id": "4711", "cancelled": false, "end": {"follows": "AwaitingRetry",
"message": "the job ended with an error, before the stage began. job 4711 on n1, FAILED, exit code 1.",
"diagnosis": {"level": "error", "category": "%s", "summary": "the job ended with an error, before the stage began",
"detail": "job 4711 on n1, FAILED, exit code 1", "resolution": "Read the end of the job's log."},
"delay_seconds": 30.0, "memory_gb": null, "exclude": ["n7"], "over_state": "s1", "again": false},
"ended_at": 1795350100.0}"""
"""As it was written before an end held as a fact whether its stage had begun."""


@pytest.mark.parametrize(("written", "read"), [("crash", "crash"), ("check_failed", "other"), ("newer", "other")])
def test_an_end_of_an_earlier_version_is_read_whatever_its_category(journal, written, read):
    journal.folder.mkdir()
    (journal.folder / "0002.json").write_text(OLD % written)
    (entry,) = journal.all()
    assert entry.end is not None and entry.end.diagnosis is not None and not entry.end.before_stage
    assert (entry.end.follows, entry.end.exclude) == ("AwaitingRetry", ["n7"])
    assert (entry.end.diagnosis.category, entry.end.diagnosis.level) == (read, "error")
    assert entry.end.diagnosis.resolution == "Read the end of the job's log."
    assert journal.write(entry) == Journal(journal.folder).all()[0], "it can be written again"
    (journal.folder / "0002.json").write_text(OLD.partition('"diagnosis"')[0] + '"diagnosis": {}}}')
    (bare,) = Journal(journal.folder).all()
    assert bare.end is not None and bare.end.diagnosis is None
