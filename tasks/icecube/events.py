"""Events of files in the layout of the Kaggle competition "IceCube - Neutrinos in Deep Ice" (2023), few in memory.

    sensor_geometry.csv           sensor_id, x, y, z (metres)
    train_meta.parquet            one row an event: batch_id, event_id, first_pulse_index, last_pulse_index, azimuth,
                                  zenith (radians)
    train/batch_<batch_id>.parquet    one row a pulse, event after event: sensor_id, time (ns), charge (photoelectrons),
                                  auxiliary (whether the pulse is likely to be noise), event_id

Indices of pulses count the rows of the event's own batch file, and the last one belongs to the event.
"""

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage import external
from storage.errors import BadInput

GEOMETRY, META, BATCHES = "sensor_geometry.csv", "train_meta.parquet", "train"

WHOLE, REAL = pa.int64(), pa.float64()
PULSES = pa.schema({"sensor_id": pa.int16(), "time": WHOLE, "charge": REAL, "auxiliary": pa.bool_(), "event_id": WHOLE})
PLACES = dict.fromkeys(("batch_id", "event_id", "first_pulse_index", "last_pulse_index"), WHOLE)
EVENTS = pa.schema(PLACES | {"azimuth": REAL, "zenith": REAL})


def batch_file(folder: Path, batch_id: int) -> Path:
    return folder / BATCHES / f"batch_{batch_id}.parquet"


def manifest(folder: Path, batch_ids: Iterable[int]) -> dict[str, str]:
    """sha256 of each of these files by its name. BadInput names one that is missing, and says what to do."""
    files = [folder / GEOMETRY, folder / META, *(batch_file(folder, batch_id) for batch_id in batch_ids)]
    if missing := [file for file in files if not file.is_file()]:
        raise BadInput(
            f"events.folder: there is no file {missing[0]} (of {len(files)} that are read, {len(missing)} are "
            f"missing): give the folder that holds {META}, {GEOMETRY} and {BATCHES}/"
        )
    return external.file_manifest([str(file) for file in files])


Digests = Mapping[str, str]
"""sha256 by the name of a file: those of the fingerprint, which what is read must have. Of a file without one none."""
NONE: Digests = {}
LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class Pulses:
    """The pulses of one batch file, event after event: int16, float32 (ns), float32 (photoelectrons), bool and int64
    [pulses], as small as they can be kept."""

    sensor_id: np.ndarray
    time: np.ndarray
    charge: np.ndarray
    auxiliary: np.ndarray
    event_id: np.ndarray


def read_geometry(folder: Path, digests: Digests = NONE) -> np.ndarray:
    """Places of the sensors by their ids, float32 [sensors, 3], metres. BadInput names a line that cannot be one."""
    file, reader = folder / GEOMETRY, None
    places: list[list[float]] = []
    try:
        with external.opened(file, digests.get(GEOMETRY)) as opened:
            reader = csv.DictReader(io.StringIO(external.decoded(opened.read()), newline=""))
        if missing := [name for name in ("sensor_id", *"xyz") if name not in (reader.fieldnames or [])]:
            raise ValueError(f"there is no column {missing[0]!r}, and columns are separated by commas")
        for row in reader:
            place = [float(row[axis]) for axis in "xyz"]
            if int(row["sensor_id"]) != len(places) or not all(abs(coordinate) <= LARGEST for coordinate in place):
                raise ValueError(f"sensor ids must be 0, 1, 2, ... in this order, each with a finite place, not {row}")
            places.append(place)
        if not places:
            raise ValueError("it has no sensors")
    except (OSError, TypeError, ValueError, csv.Error) as error:
        line = f", line {reader.line_num}" if reader else ""
        raise BadInput(f"{file}{line} is no sensor geometry (sensor_id,x,y,z): {error}") from None
    return np.array(places, dtype=np.float32)


def read_meta(folder: Path, batch_ids: list[int], digests: Digests = NONE) -> pa.Table:
    """The events of these batches in the order of their files and pulses (columns of EVENTS).

    BadInput as `_table`, and where the meta file names no event of one of the batches.
    """
    meta = _table(folder / META, EVENTS, digests, filters=[("batch_id", "in", batch_ids)])
    if missing := sorted(set(batch_ids) - set(np.unique(meta["batch_id"].to_numpy()).tolist())):
        raise BadInput(f"{folder / META} names no event of batch {missing[0]}")
    return meta.sort_by([("batch_id", "ascending"), ("first_pulse_index", "ascending")])


def read_pulses(folder: Path, batch_id: int, digests: Digests = NONE) -> Pulses:
    """A batch file. BadInput where it cannot be read as one."""
    return as_pulses(pulse_table(folder, batch_id, digests))


def pulse_table(folder: Path, batch_id: int, digests: Digests = NONE) -> pa.Table:
    """The columns of PULSES as a batch file has them. BadInput as `_table`."""
    return _table(batch_file(folder, batch_id), PULSES, digests)


def as_pulses(table: pa.Table) -> Pulses:
    """The pulses of a `pulse_table`, with 0 where there is no value: no event that is sound has such a pulse."""
    kinds = (np.int16, np.float32, np.float32, np.bool_, np.int64)
    columns = zip(Pulses.__dataclass_fields__, kinds, strict=True)
    return Pulses(*(values(table, name).astype(kind, copy=False) for name, kind in columns))


def values(table: pa.Table, name: str) -> np.ndarray:
    """A column with its own precision; 0 where it has no value."""
    return table[name].fill_null(pa.scalar(0).cast(table[name].type)).to_numpy()


def _table(file: Path, schema: pa.Schema, digests: Digests, **how: object) -> pa.Table:
    """The columns of `schema` from a Parquet file; integers and floats keep the precision that they have there.

    BadInput names the file, and what is not as it must be.
    """
    try:
        with external.opened(file, digests.get(file.name)) as opened:
            table = pq.read_table(opened, columns=schema.names, **how)
        if missing := [name for name in schema.names if name not in table.column_names]:
            raise ValueError(f"there is no column {missing[0]}")
        return pa.table({field.name: _column(table[field.name], field) for field in schema})
    except (OSError, pa.ArrowException, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"{file} is not as the layout has it ({', '.join(schema.names)}), or is cut off: {reason}"
        ) from None


def _column(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    for alike in (pa.types.is_integer, pa.types.is_floating):
        if alike(column.type) and alike(field.type):
            return column
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise ValueError(f"{field.name} is {column.type}: {error}") from None


class EventFiles:
    """Events of many files by their number, counted file by file; keeps the pulses of the files that were read last.

    With `tasks.training.order.FileOrder` of as many open files each file is read once an epoch. May be asked by
    several threads at once.
    """

    def __init__(
        self,
        folder: Path,
        batch_ids: list[int],
        open_files: int,
        max_events: int | None = None,
        digests: Digests = NONE,
    ):
        """BadInput where a file cannot be read or is another than in `digests`, or meta names no event of a batch.

        `max_events`: the first ones.
        """
        meta = read_meta(folder, batch_ids, digests).slice(0, max_events)
        self.batch_ids, self.event_ids, self._first, self._last, self.azimuth, self.zenith = (
            meta[field.name].to_numpy().astype(field.type.to_pandas_dtype(), copy=False) for field in EVENTS
        )
        self.sizes = np.unique(self.batch_ids, return_counts=True)[1].tolist()
        """Events of each file, in the order in which they are counted."""
        self._file = lru_cache(open_files)(lambda batch_id: read_pulses(folder, batch_id, digests))
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.event_ids)

    def pulses_of(self, index: int) -> Pulses:
        """The pulses of one event."""
        with self._lock:  # the others wait: what they ask for is mostly in the same file
            file = self._file(int(self.batch_ids[index]))
        here = slice(self._first[index], self._last[index] + 1)
        return Pulses(*(getattr(file, column)[here] for column in Pulses.__dataclass_fields__))
