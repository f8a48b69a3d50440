"""Events of files: what was refused or taken wrongly, through icecube-pulses and what reads after it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from storage import durable
from storage.errors import BadInput
from tasks.icecube.events import GEOMETRY, META, EventFiles, batch_file, pulse_table, read_geometry, read_meta
from tasks.icecube.pulses import Data, require_sound, splits_of
from tests.tasks.icecube.files import edit, with_value, written
from tests.tasks.icecube.tiny import run_until, smoke


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(written(), tmp_path / "files"))


def pulses_of(tmp_path: Path, folder: Path, *keys: str):
    """The first stage on the 50 events of `files.written`, of which the batches have 20, 20 and 10."""
    events = f"{{source: files, folder: {folder}, train: {{first_batch: 1, last_batch: 2}}, "
    events += "".join(f"{key}, " for key in keys) + "validation: {first_batch: 3, last_batch: 3}}"
    return run_until("icecube-look", tmp_path / "runs", smoke(f"events={events}"))


def as_float(kind: pa.DataType, **places: tuple[int, float]) -> Callable[[pa.Table], pa.Table]:
    """The table with directions of this precision, and such a value in these rows."""

    def change(table: pa.Table) -> pa.Table:
        for name, (row, value) in places.items():
            values = table[name].to_numpy().astype(kind.to_pandas_dtype())
            values[row] = value
            table = table.set_column(table.column_names.index(name), name, pa.array(values))
        return table

    return change


def test_a_float32_angle_that_is_pi_was_refused_as_degrees(tmp_path, folder):
    edit(folder / META, as_float(pa.float32(), zenith=(3, np.float32(np.pi)), azimuth=(7, np.float32(2 * np.pi))))
    handles = pulses_of(tmp_path, folder)
    assert handles["icecube-pulses"].finished and handles["icecube-look"].finished
    files = EventFiles(folder, [1], 1)
    assert files.zenith.dtype == np.float64 and files.zenith[3] == np.float32(np.pi)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), np.nextafter(np.pi, 4)),
        (pa.float32(), np.nextafter(np.float32(np.pi), np.float32(4))),
        (pa.float32(), -1e-7),
    ],
)
def test_the_next_number_beyond_the_limit_is_refused_in_either_precision(folder, kind, value):
    edit(folder / META, as_float(kind, zenith=(3, value)))
    with pytest.raises(BadInput, match="event 3 has a zenith that is not from 0 to pi"):
        require_sound(pulse_table(folder, 1), read_meta(folder, [1]), 5160, batch_file(folder, 1))


FAULTS: list[tuple[str, Callable[[pa.Table], pa.Table], str, list[int]]] = [
    (META, with_value("zenith", 5, 90.0), "has a zenith that is not from 0 to pi: is it in radians?", [5]),
    (META, with_value("azimuth", 5, float("nan")), "has no finite direction (azimuth)", [5]),
    (META, with_value("zenith", 5, None), "has no zenith in train_meta.parquet", [5]),
    (META, with_value("first_pulse_index", 5, None), "has no first_pulse_index in train_meta.parquet", [5]),
    (META, with_value("last_pulse_index", 5, 0), "has no pulses", [5]),
    (META, with_value("last_pulse_index", 5, 10**9), "has other pulses than train_meta.parquet says", [5]),
    (META, lambda meta: pa.concat_tables([meta, meta.slice(5, 1)]), "is there twice in train_meta.parquet", [5, 5]),
    (META, lambda meta: pa.concat_tables([meta.slice(0, 5), meta.slice(6)]), "", []),
    ("1", with_value("charge", 0, float("nan")), "has a charge that is not finite", [0]),
    ("1", with_value("charge", 0, -1.0), "has a charge below 0", [0]),
    ("1", with_value("sensor_id", 0, 5160), "has a sensor beyond the 5,160", [0]),
    ("1", with_value("time", 0, 10**7), "has pulses whose times fall", [0]),
    ("1", with_value("time", 0, None), "has a pulse without time", [0]),
    ("1", with_value("event_id", 1, 12), "has other pulses than train_meta.parquet says", [0]),
    (
        "1",
        lambda table: table.set_column(0, "sensor_id", pa.array([65_536, *table["sensor_id"].to_pylist()[1:]])),
        "has a sensor beyond the 5,160",
        [0],
    ),
]


@pytest.mark.parametrize(
    ("name", "change", "said", "ids"), FAULTS, ids=[f"{one[2]}-{n}" for n, one in enumerate(FAULTS)]
)
def test_one_odd_event_is_told_and_can_be_left_out(folder, name, change, said, ids):
    edit(folder / META if name == META else batch_file(folder, 1), change)
    given = (pulse_table(folder, 1), read_meta(folder, [1]), 5160, batch_file(folder, 1))
    with pytest.raises(BadInput, match=r"batch_1\.parquet"):
        require_sound(*given)
    assert require_sound(*given, skip=True) == ({said: ids} if said else {})
    files = EventFiles(folder, [1], 1, skipped=ids)
    assert files.event_ids.tolist() == [one for one in range(20) if one not in (ids or [5])]
    for place in range(19):
        assert set(files.pulses_of(place).event_id) == {files.event_ids[place]}


def test_one_odd_event_was_the_end_of_all_the_others(tmp_path, folder):
    edit(folder / META, with_value("zenith", 5, 90.0))
    edit(folder / META, with_value("event_id", 45, 7))
    edit(batch_file(folder, 2), with_value("charge", 0, -1.0))
    first = pulses_of(tmp_path, folder)["icecube-pulses"]
    assert first.outcome and not first.finished
    handles = pulses_of(tmp_path, folder, "skip_bad_events: true")
    found = splits_of(handles["icecube-pulses"].as_input())
    twice, others = (f"{what} train_meta.parquet" for what in ("is there twice in", "has other pulses than"))
    assert found["train"].events == 37 and found["validation"].events == 9
    assert found["validation"].skipped == {f"{others} says": [7]}
    assert found["train"].skipped == {
        "has a zenith that is not from 0 to pi: is it in radians?": [5],
        f"{twice}, of two files": [7],
        "has a charge below 0": [20],
    }
    look = handles["icecube-look"]
    data = Data.open(handles["icecube-pulses"].as_input(), look.config)
    assert look.finished and len(data.train) == 37
    assert data.train.event_ids.tolist() == [one for one in range(40) if one not in (5, 7, 20)]
    assert data.validation.event_ids.tolist() == [40, 41, 42, 43, 44, 46, 47, 48, 49]


def test_a_file_of_which_no_event_is_sound_is_refused_all_the_same(tmp_path, folder):
    edit(batch_file(folder, 2), lambda table: table.slice(0, 0))
    pulses = pulses_of(tmp_path, folder, "skip_bad_events: true")["icecube-pulses"]
    assert pulses.outcome and "none of its 20 events is sound: has other pulses" in pulses.outcome.text


@pytest.mark.parametrize("name", [GEOMETRY, META, "train/batch_1.parquet"])
def test_no_event_file_is_read_but_under_the_sha256_that_icecube_pulses_found(tmp_path, folder, name):
    """Changed so that path, size and times stay: only who hashes what is opened can see it."""
    file = folder / name
    digests = {file.name: durable.sha256_file(file)}
    EventFiles(folder, [1], 1, digests=digests).pulses_of(0), read_geometry(folder, digests)
    content, stat = bytearray(file.read_bytes()), file.stat()
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with pytest.raises(BadInput, match=f"{file.name} is not the file any more whose sha256 is in the fingerprint"):
        EventFiles(folder, [1], 1, digests=digests).pulses_of(0), read_geometry(folder, digests)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_geometry_with_a_byte_order_mark(folder, encoding):
    plain = read_geometry(folder)
    (folder / GEOMETRY).write_bytes((folder / GEOMETRY).read_bytes().decode().encode(encoding))
    assert np.array_equal(read_geometry(folder), plain)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"\n2,", b"\n2,x", "line 4 is no sensor geometry .*could not convert string to float"),
        (b"\n2,", b"\n2,nan,", "line 4 is no sensor geometry .*finite place"),
        (b"\n2,", b"\n3,", "line 4 is no sensor geometry .*sensor ids must be 0, 1, 2"),
        (b",", b";", "line 1 is no sensor geometry .*no column 'sensor_id', and columns are separated by commas"),
        (b"\n2,", b"\n2\xe9,", r"is no sensor geometry .*line 4, byte \d+ of the file \(0xe9\) is no UTF-8"),
    ],
)
def test_a_bad_line_of_the_geometry_is_told_by_its_number(folder, old, new, said):
    content = (folder / GEOMETRY).read_bytes().replace(b"\r\n", b"\n")
    (folder / GEOMETRY).write_bytes(content.replace(old, new))
    with pytest.raises(BadInput, match=said):
        read_geometry(folder)


def test_a_folder_whose_name_says_a_value_of_a_column(tmp_path, folder):
    """pyarrow takes folders such as event_id=5 for a column, and [12] or * are patterns to others."""
    odd = folder.rename(tmp_path / "event_id=5 [12]*")
    assert EventFiles(odd, [1], 1).event_ids.tolist() == list(range(20))
