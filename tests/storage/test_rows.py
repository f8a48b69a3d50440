"""Metric rows are cut back to what a checkpoint knows."""

import json
import math

import pytest

from storage import durable
from storage.rows import Rows
from tests.storage import runs


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.jsonl"


def lines(file):
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def appended(file, *steps):
    rows = Rows(file)
    for step in steps:
        rows.append({"step": step, "loss": step / 3})
    return rows


def test_rows_come_back_as_they_were_appended(file):
    appended(file, 1, 2)
    appended(file, 3)
    assert lines(file) == [{"step": step, "loss": step / 3} for step in (1, 2, 3)]


def test_a_position_is_length_and_digest_of_what_stands_there(file):
    rows = appended(file, 1, 2)
    assert rows.position() == {"length": file.stat().st_size, "sha256": durable.sha256_file(file)}
    assert Rows(file).position() == rows.position()


def test_the_position_of_no_rows_is_the_beginning(file):
    position = Rows(file).position()
    assert position["length"] == 0
    appended(file, 1).cut_back(position)
    assert file.read_bytes() == b""


def test_rows_after_the_position_are_cut_off_and_the_file_goes_on_as_if_they_never_were(file, tmp_path):
    position = appended(file, 1, 2).position()
    appended(file, 3, 4)
    rows = Rows(file)
    rows.cut_back(position)
    assert rows.position() == position
    for step in (3, 4, 5):
        rows.append({"step": step, "loss": step / 3})
    uninterrupted = appended(tmp_path / "other.jsonl", 1, 2, 3, 4, 5)
    assert file.read_bytes() == (tmp_path / "other.jsonl").read_bytes()
    assert rows.position() == uninterrupted.position()


def test_a_torn_last_line_is_cut_off(file):
    position = appended(file, 1, 2).position()
    with file.open("ab") as opened:
        opened.write(b'{"step":3,"lo')
    rows = Rows(file)
    rows.cut_back(position)
    assert [row["step"] for row in lines(file)] == [1, 2]
    assert rows.position() == position


def test_without_a_checkpoint_everything_goes(file):
    appended(file, 1, 2)
    rows = Rows(file)
    rows.cut_back(None)
    assert file.read_bytes() == b""
    rows.append({"step": 1})
    assert rows.position()["sha256"] == durable.sha256_file(file)


def test_an_older_position_still_serves_after_a_newer_one_was_refused(file):
    rows = appended(file, 1)
    old = rows.position()
    rows.append({"step": 2})
    new = rows.position()
    data = file.read_bytes()
    file.write_bytes(data[:-2] + b" }")
    rows = Rows(file)
    with pytest.raises(ValueError, match="has other rows"):
        rows.cut_back(new)
    rows.cut_back(old)
    assert [row["step"] for row in lines(file)] == [1]


def test_a_row_that_someone_else_appended_is_found_before_it_reaches_a_checkpoint(file):
    """A holder that was taken for dead comes back and appends: the new holder must not take it for its own row."""
    rows = appended(file, 1)
    appended(file, 1)
    rows.append({"step": 2})
    with pytest.raises(ValueError, match=r"another process wrote to .*metrics\.jsonl: \d+ bytes"):
        rows.position()


def test_a_holder_taken_over_between_its_look_at_the_lock_and_its_row_writes_no_row_of_the_contender(file):
    """A process may be frozen for minutes between any two of its instructions."""

    class TakenOver:
        """A lock that is taken over right after it was looked at."""

        def check(self):
            contender = Rows(file)
            contender.cut_back(position)
            contender.append({"step": 2, "loss": 0.5})
            contender.position()

    position = appended(file, 1).position()
    rows = Rows(file, TakenOver())
    rows.append({"step": 2, "loss": 0.25})
    assert [row.get("loss") for row in lines(file)] == [1 / 3, 0.5]
    with pytest.raises(ValueError, match=r"another process wrote to .*metrics\.jsonl"):
        rows.position()


def test_a_row_that_is_not_finite_is_refused_and_not_half_written(file):
    rows = appended(file, 1)
    before = rows.position()
    with pytest.raises(ValueError, match="not JSON compliant"):
        rows.append({"step": 2, "loss": math.nan})
    assert rows.position() == before


def test_a_full_disk_names_the_file_and_the_next_attempt_cuts_back(file):
    rows = appended(file, 1)
    position = rows.position()
    with runs.files_no_larger_than(position["length"] + 10), pytest.raises(OSError, match=r"metrics\.jsonl"):
        rows.append({"step": 2, "loss": 0.5})
    again = Rows(file)
    again.cut_back(position)
    again.append({"step": 2, "loss": 0.5})
    assert [row["step"] for row in lines(file)] == [1, 2]
