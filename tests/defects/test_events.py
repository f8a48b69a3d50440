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
from tasks.icecube.pulses import require_sound
from tests.tasks.icecube.files import edit, with_value, written
from tests.tasks.icecube.tiny import run_until, smoke


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(written(), tmp_path / "files"))


def pulses_of(tmp_path: Path, folder: Path):
    """The first stage on the 50 events of `files.written`, of which the batches have 20, 20 and 10."""
    events = f"{{source: files, folder: {folder}, train: {{first_batch: 1, last_batch: 2}}, "
    events += "validation: {first_batch: 3, last_batch: 3}}"
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
    with pytest.raises(BadInput, match="event 3 has a direction \(zenith\) that is not from 0 to pi"):
        require_sound(pulse_table(folder, 1), read_meta(folder, [1]), 5160, batch_file(folder, 1))


OTHERS = "the two do not belong together"
FAULTS: list[tuple[str, Callable[[pa.Table], pa.Table], str]] = [
    (META, with_value("azimuth", 5, float("nan")), "event 5 has no finite direction (azimuth)"),
    (META, with_value("first_pulse_index", 5, None), "event 5 has no first_pulse_index in train_meta.parquet"),
    (META, with_value("last_pulse_index", 5, 0), "event 5 has no pulses"),
    (META, with_value("last_pulse_index", 5, 10**9), OTHERS),
    (META, lambda meta: pa.concat_tables([meta.slice(0, 5), meta.slice(6)]), OTHERS),
    (META, lambda meta: meta.slice(1), OTHERS),
    (META, with_value("zenith", 3, None), "event 3 has no zenith in train_meta.parquet"),
    ("1", lambda table: table.slice(0, len(table) - 1), OTHERS),
    (
        "1",
        with_value("auxiliary", 3, None),
        "event 0 has a pulse without auxiliary (1 such events, the first in row 4",
    ),
    ("1", with_value("charge", 0, -0.5), "event 0 has a charge below 0"),
    ("1", with_value("sensor_id", 0, -1), "event 0 has a sensor beyond the 5,160"),
    ("1", with_value("time", 0, 10**7), "event 0 has pulses whose times fall"),
    ("1", with_value("charge", 0, float("nan")), "event 0 has a charge that is not finite"),
    ("1", with_value("sensor_id", 0, 5160), "event 0 has a sensor beyond the 5,160"),
    ("1", with_value("event_id", 1, 12), "event 0 has pulses of another event among its own"),
    (
        "1",
        lambda table: table.set_column(0, "sensor_id", pa.array([65_536, *table["sensor_id"].to_pylist()[1:]])),
        "event 0 has a sensor beyond the 5,160",
    ),
    ("1", lambda table: table.slice(0, 0), OTHERS),
]


@pytest.mark.parametrize(("name", "change", "said"), FAULTS, ids=[f"{one[2]}-{n}" for n, one in enumerate(FAULTS)])
def test_one_odd_event_is_told_by_file_and_event(folder, name, change, said):
    edit(folder / META if name == META else batch_file(folder, 1), change)
    with pytest.raises(BadInput) as error:
        require_sound(pulse_table(folder, 1), read_meta(folder, [1]), 5160, batch_file(folder, 1))
    assert "batch_1.parquet" in str(error.value) and said in str(error.value)


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
