"""A record part counts only with the digest beside it; parts are merged in bounded memory."""

import math
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import locks
from storage.errors import CheckFailed
from storage.locks import LockLost
from storage.records import RecordParts, read_records
from tests.storage import runs

KEY = ("model", "example_id")
IDENTITY = {"fingerprint": "f" * 64, "inputs": {"base": "a" * 64}}


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
    parts.merge(["b", "a"], tmp_path / "records.parquet", KEY)
    merged = pq.read_table(tmp_path / "records.parquet").to_pylist()
    assert merged == records("baseline") + records("base")
    assert not runs.temporaries(tmp_path)


def test_the_merged_file_is_the_same_bytes_however_often_the_work_was_cut(parts, tmp_path, lock):
    parts.write("a", records("base"))
    parts.write("b", records("baseline"))
    parts.merge(["a", "b"], tmp_path / "once.parquet", KEY)
    other = RecordParts(tmp_path / "other", IDENTITY, lock)
    other.write("b", records("baseline", shift=1.0))
    other.write("b", records("baseline"))
    other.write("a", records("base"))
    other.merge(["a", "b"], tmp_path / "again.parquet", KEY)
    assert (tmp_path / "once.parquet").read_bytes() == (tmp_path / "again.parquet").read_bytes()


@pytest.mark.parametrize("other", [{"fingerprint": "0" * 64}, {"inputs": {"base": "b" * 64}}])
def test_a_part_of_another_configuration_or_other_inputs_does_not_count(parts, folder, lock, other):
    RecordParts(folder, IDENTITY | other, lock).write("a", records(shift=1.0))
    assert not parts.has("a")
    parts.write("a", records())
    assert parts.has("a")


def test_only_parts_for_the_present_inputs_are_progress(parts, folder, lock):
    RecordParts(folder, IDENTITY | {"inputs": {}}, lock).write("a", records())
    assert parts.count() == 0
    parts.write("b", records())
    assert parts.count() == 1


def test_a_part_copied_under_another_name_without_its_note_does_not_count(parts, folder):
    parts.write("a", records())
    (folder / "b.parquet").write_bytes((folder / "a.parquet").read_bytes())
    assert not parts.has("b")


@pytest.mark.parametrize("key", ["", "../a", "A", "a/b", ".a", "a b", "a\n"])
def test_a_key_that_is_no_file_name_is_refused(parts, key):
    with pytest.raises(ValueError, match="cannot name a record part"):
        parts.write(key, records())
    with pytest.raises(ValueError, match="cannot name a record part"):
        parts.merge([key], parts._directory / "x", KEY)


def test_a_holder_that_was_taken_over_cannot_write_a_part(parts, tmp_path):
    (tmp_path / "locks" / "2.json").write_text("{}")
    with pytest.raises(LockLost):
        parts.write("a", map(pytest.fail, ["a row was made for it"]))
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


# ------------------------------------------------------------------------------------------- bounded memory


@pytest.fixture
def small_bounds(monkeypatch):
    """Row groups of 4 rows, so that a few rows go the way of millions."""
    monkeypatch.setattr("storage.records.ROW_GROUP_ROWS", 4)


def test_parts_of_any_size_and_order_merge_as_they_were(parts, tmp_path, small_bounds):
    chance = random.Random(7)
    for sizes in ([1] * 30, [37], [4, 4, 4], [9, 1, 25, 2], [10, 10], [1]):
        rows = [
            {
                "event": chance.randrange(-3, 3),
                "sensor": chr(chance.choice([97, 233, 0xFFFD, 0x1F600])) + str(number),  # UTF-16 would sort otherwise
                "loss": chance.choice([0.1, -0.0, math.nan, math.inf, None]),
                "positions": [chance.randrange(9) for _ in range(chance.randrange(3))],
                "true": chance.random() < 0.5,
            }
            for number in range(sum(sizes))
        ]
        remaining, names = iter(rows), [f"p{number:02d}" for number in range(len(sizes))]
        for name, size in zip(names, sizes, strict=True):
            parts.write(name, [next(remaining) for _ in range(size)])
        parts.merge(names, tmp_path / "records.parquet", ("event", "sensor"))
        assert repr(list(read_records(tmp_path / "records.parquet"))) == repr(rows)
        metadata = pq.read_metadata(tmp_path / "records.parquet")
        assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= 4
        assert set(tmp_path.iterdir()) == {tmp_path / "locks", tmp_path / "records", tmp_path / "records.parquet"}


def test_a_generator_of_rows_gives_the_bytes_that_a_list_gives(parts, folder, small_bounds):
    parts.write("a", records(count=23))
    parts.write("b", iter(records(count=23)))
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


def test_types_that_show_late_in_a_part_are_those_of_all_its_rows(parts, folder, small_bounds):
    """A list that is empty in the first row group has no type there, and a number may turn out not to be whole."""
    early = [{"model": "m", "example_id": str(n), "positions": [], "x": n} for n in range(8)]
    rows = [*early, {"model": "m", "example_id": "8", "positions": [3], "x": 0.5}]
    parts.write("a", iter(rows))
    assert pq.read_table(folder / "a.parquet").equals(pa.Table.from_pylist(rows))


def test_a_list_that_is_empty_throughout_a_part_takes_the_type_it_has_in_another(parts, tmp_path):
    empty = [{"model": "a", "example_id": "1", "positions": []}]
    full = [{"model": "b", "example_id": "1", "positions": [3]}]
    parts.write("a", empty)
    parts.write("b", full)
    parts.merge(["a", "b"], tmp_path / "records.parquet", KEY)
    assert list(read_records(tmp_path / "records.parquet")) == empty + full
    parts.merge(["a"], tmp_path / "records.parquet", KEY)
    assert list(read_records(tmp_path / "records.parquet")) == empty


def test_a_part_without_rows_counts_and_adds_none(parts, tmp_path):
    parts.write("none", [])
    parts.write("some", records())
    assert parts.has("none")
    parts.merge(["none", "some"], tmp_path / "records.parquet", KEY)
    assert list(read_records(tmp_path / "records.parquet")) == records()


def test_parts_whose_rows_give_their_columns_in_another_order_are_merged(parts, tmp_path):
    turned = [dict(reversed(row.items())) for row in records("b")]
    parts.write("a", records("a"))
    parts.write("b", turned)
    parts.merge(["a", "b"], tmp_path / "records.parquet", KEY)
    assert list(read_records(tmp_path / "records.parquet")) == records("a") + records("b")


@pytest.mark.parametrize(("without", "differs"), [([0], 1), ([30], 30), (range(30), 30)])
def test_a_column_that_some_rows_of_a_part_have_is_refused_by_name(parts, without, differs, small_bounds):
    rows = [row | {"further": 1} for row in records(count=40)]
    for number in without:
        del rows[number]["further"]
    with pytest.raises(CheckFailed, match=f"the same columns: measured further: row {differs} differs from the first"):
        parts.write("a", rows)
    assert not parts.has("a")


def test_a_column_that_some_parts_have_is_refused_by_name(parts, tmp_path):
    parts.write("a", records("a"))
    parts.write("b", [row | {"further": 1} for row in records("b")])
    with pytest.raises(CheckFailed, match=r"the same columns: measured further: part 1 .*"):
        parts.merge(["a", "b"], tmp_path / "records.parquet", KEY)


def test_some_columns_are_read_alone(parts, tmp_path, small_bounds):
    parts.write("a", records(count=9))
    parts.merge(["a"], tmp_path / "records.parquet", KEY)
    found = list(read_records(tmp_path / "records.parquet", ("example_id", "tokens_scored")))
    assert found == [{key: row[key] for key in ("example_id", "tokens_scored")} for row in records(count=9)]


def test_a_holder_that_is_taken_over_while_rows_are_made_cannot_write_the_part(parts, folder, tmp_path):
    def rows():
        yield from records()
        (tmp_path / "locks" / "2.json").write_text("{}")

    with pytest.raises(LockLost):
        parts.write("a", rows())
    assert not parts.has("a") and not list(folder.iterdir())


GROWTH = """
import sys
from pathlib import Path
from storage import locks, records

def peak_mb():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024

def rows(count):
    return ({"event": n * 7919 % count, "sensor": n % 5, "true": n / 7, "text": f"{n:0100d}"} for n in range(count))

folder, (group, first, last) = Path(sys.argv[1]), map(int, sys.argv[2:])
records.ROW_GROUP_ROWS = group or records.ROW_GROUP_ROWS
lock = locks.acquire(folder / "locks")
parts = records.RecordParts(folder / "records", {}, lock)
for count in (first, last):  # what libraries take once is taken by the first
    before = peak_mb()
    parts.write("long", rows(count))
    parts.write("short", ({**row, "sensor": 9} for row in rows(1000)))
    parts.merge(["short", "long"], folder / "records.parquet", ("event", "sensor"))
    read = sum(1 for row in records.read_records(folder / "records.parquet"))
assert read == count + 1000
print(peak_mb() - before)
lock.release()
"""


@pytest.mark.parametrize(
    ("group", "first", "last", "most"),
    [(500, 2_000, 100_000, 25), pytest.param(0, 270_000, 10**6, 75, marks=pytest.mark.long)],
)
def test_a_part_is_written_merged_and_read_in_memory_that_its_rows_would_not_fit_in(tmp_path, group, first, last, most):
    """More at the peak than for the first rows: 9 MB for 100,000 in small groups, 5 to 50 for a million in real ones;
    38 and 100, or more, where all are held to be written, sorted, read or merged, if only as Arrow columns."""
    command = [sys.executable, "-c", GROWTH, str(tmp_path), *map(str, (group, first, last))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=runs.REPOSITORY)
    assert float(done.stdout) < most


# ------------------------------------------------------------------------------------------------- their key


@pytest.mark.parametrize("apart", [1, 40])
def test_two_records_of_one_key_are_an_error_that_names_it(parts, tmp_path, small_bounds, apart):
    rows = records(count=apart + 1)
    rows[apart]["example_id"] = rows[0]["example_id"]
    parts.write("a", rows[:1])
    parts.write("b", rows[1:])
    with pytest.raises(CheckFailed, match="two of model='base', example_id='0000', required one"):
        parts.merge(["a", "b"], tmp_path / "records.parquet", KEY)


@pytest.mark.parametrize(
    ("key", "measured"), [(("event",), "event: missing"), (("model", "loss_sum_nats"), "loss_sum_nats: double")]
)
def test_key_columns_that_are_missing_or_have_no_order_are_refused_by_name(parts, tmp_path, key, measured):
    parts.write("a", records())
    with pytest.raises(CheckFailed, match=f"measured {measured}, required text or whole numbers"):
        parts.merge(["a"], tmp_path / "records.parquet", key)


def test_a_record_without_a_key_is_refused(parts, tmp_path):
    parts.write("a", [*records(), {**records()[0], "example_id": None}])
    with pytest.raises(CheckFailed, match="every record has a key: measured one without example_id"):
        parts.merge(["a"], tmp_path / "records.parquet", KEY)
