"""Metric rows are cut back to what a checkpoint knows; a record part counts only with the digest beside it."""

from __future__ import annotations

import json
import math
import random

import pyarrow.parquet as pq
import pytest

from storage import durable, locks
from storage.locks import LockLost
from storage.rows import RecordParts, Rows, records_digest
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


# ------------------------------------------------------------------------------------------------------ rows


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


def alter(file):
    runs.edit_unnoticed(file)


def shorten(file):
    file.write_bytes(file.read_bytes()[:-1])


def lose(file):
    file.unlink()


@pytest.mark.parametrize("damage", [alter, shorten, lose])
def test_rows_altered_before_the_position_are_refused_and_left_alone(file, damage):
    position = appended(file, 1, 2).position()
    damage(file)
    before = file.read_bytes() if file.exists() else None
    with pytest.raises(ValueError, match=f"was altered before byte {position['length']}"):
        Rows(file).cut_back(position)
    assert (file.read_bytes() if file.exists() else None) == before


def test_an_older_position_still_serves_after_a_newer_one_was_refused(file):
    rows = appended(file, 1)
    old = rows.position()
    rows.append({"step": 2})
    new = rows.position()
    data = file.read_bytes()
    file.write_bytes(data[:-2] + b" }")
    rows = Rows(file)
    with pytest.raises(ValueError, match="was altered"):
        rows.cut_back(new)
    rows.cut_back(old)
    assert [row["step"] for row in lines(file)] == [1]


def test_a_row_that_someone_else_appended_is_found_before_it_reaches_a_checkpoint(file):
    """A holder that was taken for dead comes back and appends: the new holder must not take it for its own row."""
    rows = appended(file, 1)
    appended(file, 1)
    rows.append({"step": 2})
    with pytest.raises(ValueError, match=r"metrics\.jsonl has \d+ bytes.*another process"):
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


# --------------------------------------------------------------------------------------------------- records

IDENTITY = {"fingerprint": "f" * 64, "inputs": {"base": "a" * 64}}


@pytest.fixture
def lock(tmp_path):
    lock = locks.acquire(tmp_path / "locks")
    yield lock
    lock.release()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "records"


@pytest.fixture
def parts(folder, lock):
    return RecordParts(folder, IDENTITY, lock)


def records(model="base", count=5, shift=0.0):
    return [
        {"model": model, "example_id": f"{n:04x}", "tokens_scored": 10 + n, "loss_sum_nats": n / 7 + shift}
        for n in range(count)
    ]


def test_a_part_is_there_once_it_was_written(parts, folder, lock):
    assert not parts.has("base-00000")
    parts.write("base-00000", records())
    assert parts.has("base-00000") and not parts.has("base-00001")
    assert RecordParts(folder, IDENTITY, lock).has("base-00000")


def test_parts_merge_in_the_order_given_with_their_values_bit_for_bit(parts, tmp_path):
    parts.write("b", records("baseline"))
    parts.write("a", records("base"))
    digest = parts.merge(["b", "a"], tmp_path / "records.parquet")
    merged = pq.read_table(tmp_path / "records.parquet").to_pylist()
    assert merged == records("baseline") + records("base")
    assert digest == records_digest(merged)
    assert not runs.temporaries(tmp_path)


def test_the_merged_file_is_the_same_bytes_however_often_the_work_was_cut(parts, tmp_path, lock):
    parts.write("a", records("base"))
    parts.write("b", records("baseline"))
    parts.merge(["a", "b"], tmp_path / "once.parquet")
    other = RecordParts(tmp_path / "other", IDENTITY, lock)
    other.write("b", records("baseline", shift=1.0))
    other.write("b", records("baseline"))
    other.write("a", records("base"))
    other.merge(["a", "b"], tmp_path / "again.parquet")
    assert (tmp_path / "once.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()


def tear(parquet, _note):
    parquet.write_bytes(parquet.read_bytes()[:-10])


def flip(parquet, _note):
    runs.edit_unnoticed(parquet)


def lose_the_parquet(parquet, _note):
    parquet.unlink()


def lose_the_note(_parquet, note):
    note.unlink()


def empty_the_note(_parquet, note):
    note.write_bytes(b"")


def null_the_note(_parquet, note):
    note.write_bytes(b"null")


@pytest.mark.parametrize("damage", [tear, flip, lose_the_parquet, lose_the_note, empty_the_note, null_the_note])
def test_a_torn_part_does_not_count_and_is_written_again(parts, folder, damage):
    parts.write("a", records())
    damage(folder / "a.parquet", folder / "a.json")
    assert not parts.has("a")
    parts.write("a", records())
    assert parts.has("a")


@pytest.mark.parametrize("other", [{"fingerprint": "0" * 64}, {"inputs": {"base": "b" * 64}}])
def test_a_part_of_another_configuration_or_other_inputs_does_not_count(parts, folder, lock, other):
    RecordParts(folder, IDENTITY | other, lock).write("a", records(shift=1.0))
    assert not parts.has("a")
    parts.write("a", records())
    assert parts.has("a")


def test_a_part_copied_under_another_name_without_its_note_does_not_count(parts, folder):
    parts.write("a", records())
    (folder / "b.parquet").write_bytes((folder / "a.parquet").read_bytes())
    assert not parts.has("b")


@pytest.mark.parametrize("key", ["", "../a", "A", "a/b", ".a", "a b", "a\n"])
def test_a_key_that_is_no_file_name_is_refused(parts, key):
    with pytest.raises(ValueError, match="cannot name a record part"):
        parts.write(key, records())
    with pytest.raises(ValueError, match="cannot name a record part"):
        parts.merge([key], parts._directory / "x")


def test_a_holder_that_was_taken_over_cannot_write_a_part(parts, tmp_path):
    (tmp_path / "locks" / "2.json").write_text("{}")
    with pytest.raises(LockLost):
        parts.write("a", records())
    assert not parts.has("a")


def test_a_full_disk_leaves_the_older_part(small_disk):
    lock = locks.acquire(small_disk / "locks")
    parts = RecordParts(small_disk / "records", IDENTITY, lock)
    parts.write("a", records())
    large = [{"model": "x", "example_id": str(n), "value": random.Random(n).random()} for n in range(50_000)]
    with pytest.raises(OSError, match=r"No space left on device.*a\.parquet"):
        parts.write("a", large)
    assert parts.has("a")
    lock.release()


# ---------------------------------------------------------------------------------------- the records digest


def test_the_records_digest_does_not_depend_on_the_order_of_rows_or_fields():
    rows = records("base") + records("baseline")
    shuffled = [dict(reversed(row.items())) for row in rows]
    random.Random(1).shuffle(shuffled)
    assert records_digest(shuffled) == records_digest(rows)


def test_the_records_digest_sees_the_last_bit_of_a_float():
    rows, other = records(), records()
    other[3]["loss_sum_nats"] = math.nextafter(other[3]["loss_sum_nats"], math.inf)
    assert records_digest(rows) != records_digest(other)


@pytest.mark.parametrize(("before", "after"), [(0.0, -0.0), (1.0, 1), (1, True), (None, 0.0)])
def test_the_records_digest_tells_values_apart_that_python_calls_equal(before, after):
    row = {"model": "base", "example_id": "0"}
    assert records_digest([row | {"value": before}]) != records_digest([row | {"value": after}])


def test_the_records_digest_takes_values_that_json_does_not():
    row = {"model": "base", "example_id": "0"}
    digests = {records_digest([row | {"value": value}]) for value in (math.nan, math.inf, -math.inf, 0.0)}
    assert len(digests) == 4


@pytest.mark.parametrize("change", [{"model": "other"}, {"example_id": "ffff"}, {"tokens_scored": 11}])
def test_the_records_digest_sees_every_column(change):
    rows = records()
    assert records_digest([*rows[:-1], rows[-1] | change]) != records_digest(rows)


def test_the_records_digest_sees_a_row_less_and_a_row_twice():
    rows = records()
    assert len({records_digest(some) for some in (rows, rows[:-1], [*rows, rows[0]], [])}) == 4
