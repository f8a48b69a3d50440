"""Files in Kaggle's layout: what is wrong with them is named, and what is right is read as it was written."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from storage.errors import BadInput
from tasks.icecube import events as module
from tasks.icecube.events import (
    EVENTS,
    GEOMETRY,
    META,
    PULSES,
    EventFiles,
    batch_file,
    pulse_table,
    read_geometry,
    read_meta,
    read_pulses,
)
from tasks.icecube.generator import write_events
from tasks.icecube.pulses import require_sound
from tasks.training.order import FileOrder
from tests.tasks.icecube.files import EVENTS as EVENTS_WRITTEN
from tests.tasks.icecube.files import PER_BATCH, SEED, edit, written


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(written(), tmp_path / "files"))


def check(folder: Path, batch_id: int = 1) -> None:
    sensors = len(read_geometry(folder))
    require_sound(pulse_table(folder, batch_id), read_meta(folder, [batch_id]), sensors, batch_file(folder, batch_id))


# ------------------------------------------------------------------------------------------------ written


def test_what_is_generated_has_the_layout_and_is_sound():
    folder = written()
    assert pq.read_schema(batch_file(folder, 1)).equals(PULSES) and pq.read_schema(folder / META).equals(EVENTS)
    for batch_id in (1, 2, 3):
        check(folder, batch_id)
    assert read_geometry(folder).shape == (5160, 3)


def test_an_interrupted_generation_makes_no_batch_again_and_gives_the_same_files(tmp_path: Path):
    going = write_events(tmp_path, EVENTS_WRITTEN, PER_BATCH, SEED)
    assert [next(going), next(going)] == [20, 40]  # and is left there
    going.close()
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "train").iterdir()}
    assert list(write_events(tmp_path, EVENTS_WRITTEN, PER_BATCH, SEED)) == [20, 40, 50]
    assert len(before) == 2 and all(file.stat().st_mtime_ns == time for file, time in before.items())
    names = sorted(file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file())
    assert names == [GEOMETRY, *(f"train/batch_{number}.parquet" for number in (1, 2, 3)), META]
    assert all((tmp_path / name).read_bytes() == (written() / name).read_bytes() for name in names)


def test_generated_values_have_the_recorded_sizes():
    pulses = pa.concat_tables([pq.read_table(batch_file(written(), batch_id)) for batch_id in (1, 2, 3)])
    time, charge = pulses["time"].to_numpy(), pulses["charge"].to_numpy()
    assert 5_714 <= time.min() < 8_000 and time.max() <= 77_785 and 9_000 < time.mean() < 14_000
    assert charge.min() >= 0.025 and charge.max() <= 2_762
    assert 0.1 < pc.mean(pulses["auxiliary"].cast(pa.int8())).as_py() < 0.5


def test_the_light_of_an_event_runs_along_its_track():
    """Later pulses lie further on the way, away from where the event came from: a direction can be learned."""
    files, places = EventFiles(written(), [1, 2, 3], 3), read_geometry(written())
    alike = []
    for index in range(len(files)):
        pulses = files.pulses_of(index)
        signal = ~pulses.auxiliary & (pulses.time < 20_000)
        zenith, azimuth = files.zenith[index], files.azimuth[index]
        origin = [np.sin(zenith) * np.cos(azimuth), np.sin(zenith) * np.sin(azimuth), np.cos(zenith)]
        if signal.sum() > 20:
            alike.append(np.corrcoef(places[pulses.sensor_id[signal]] @ -np.array(origin), pulses.time[signal])[0, 1])
    assert len(alike) > 20 and np.median(alike) > 0.9


# ------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize("name", [META, "train/batch_1.parquet"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_named(folder: Path, name: str, share: float):
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[: int(share * len(content))])
    with pytest.raises(BadInput, match=f"{name} is not as the layout has it .*, or is cut off"):
        check(folder)


@pytest.mark.parametrize("name", [META, "train/batch_1.parquet"])
def test_a_file_that_is_not_there_or_has_other_columns_is_named(folder: Path, name: str):
    edit(folder / name, lambda table: table.drop_columns(["event_id"]))
    with pytest.raises(BadInput, match=f"{name} is not as the layout has it"):
        check(folder)
    (folder / name).unlink()
    with pytest.raises(BadInput, match=f"{name} is not as the layout has it"):
        check(folder)


def test_a_batch_without_events_is_named(folder: Path):
    with pytest.raises(BadInput, match="names no event of batch 9"):
        EventFiles(folder, [1, 9], 2)


# ------------------------------------------------------------------------------------------------ read


def test_every_event_is_read_as_it_was_written(folder: Path):
    files, whole = EventFiles(folder, [1, 3], 2), pq.read_table(batch_file(folder, 3))
    assert len(files) == 30 and files.sizes == [20, 10]
    for index in (20, 29):
        pulses, event_id = files.pulses_of(index), files.event_ids[index]
        expected = whole.filter(pc.field("event_id") == int(event_id))
        assert pulses.time.tolist() == expected["time"].to_pylist()
        assert pulses.sensor_id.tolist() == expected["sensor_id"].to_pylist()
        assert pulses.charge.tolist() == [np.float32(value) for value in expected["charge"].to_pylist()]
        assert pulses.auxiliary.tolist() == expected["auxiliary"].to_pylist()


@pytest.mark.parametrize("open_files", [1, 2])
def test_each_file_is_read_once_an_epoch_in_the_order_of_files(monkeypatch: pytest.MonkeyPatch, open_files: int):
    files, read = EventFiles(written(), [1, 2, 3], open_files), []
    monkeypatch.setattr(module, "read_pulses", lambda *given: read.append(given[1]) or read_pulses(*given))
    order = FileOrder(files.sizes, open_files)
    for index in order(0, 0, np.arange(50), 50):
        files.pulses_of(int(index))
    assert sorted(read) == [1, 2, 3]
    read.clear()
    for index in np.random.default_rng(0).permutation(50):
        files.pulses_of(int(index))
    assert len(read) > 10, "any order reads files again and again"


def test_the_file_that_was_read_last_stays_open(monkeypatch: pytest.MonkeyPatch):
    files, read = EventFiles(written(), [1, 2, 3], 2), []
    monkeypatch.setattr(module, "read_pulses", lambda *given: read.append(given[1]) or read_pulses(*given))
    for index in (0, 20, 1, 40, 2):  # of the files 1, 2, 1, 3, 1
        files.pulses_of(index)
    assert read == [1, 2, 3]


def test_threads_read_the_same(folder: Path):
    files = EventFiles(folder, [1, 2, 3], 1)
    expected = [EventFiles(folder, [1, 2, 3], 3).pulses_of(index).time.tolist() for index in range(50)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: files.pulses_of(index).time.tolist(), range(50)))
    assert found == expected
