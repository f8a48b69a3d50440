"""Events of files in Kaggle's layout: checked file by file, then read event by event, with few files in memory."""

from __future__ import annotations

import csv
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.errors import BadInput
from tasks.icecube.layout import EVENTS, GEOMETRY, META, PULSES, batch_file


@dataclass(frozen=True)
class Pulses:
    """The pulses of one batch file, as small as they can be kept; all [pulses], event after event."""

    sensor_id: np.ndarray
    """int16"""
    time: np.ndarray
    """float32, ns"""
    charge: np.ndarray
    """float32, photoelectrons"""
    auxiliary: np.ndarray
    """bool"""
    event_id: np.ndarray
    """int64"""


def read_geometry(folder: Path) -> np.ndarray:
    """Places of the sensors by their ids, float32 [sensors, 3], metres. BadInput names a line that cannot be one."""
    file = folder / GEOMETRY
    try:
        with file.open(newline="") as text:
            rows = list(csv.DictReader(text))
        places = np.array([[float(row[axis]) for axis in "xyz"] for row in rows], dtype=np.float32)
        ids = [int(row["sensor_id"]) for row in rows]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{file} is no sensor geometry (sensor_id,x,y,z): {error}") from None
    if ids != list(range(len(ids))) or not np.isfinite(places).all() or not len(ids):
        raise BadInput(f"{file}: sensor ids must be 0, 1, 2, ... in this order, each with a finite place")
    return places


def read_meta(folder: Path, batch_ids: list[int]) -> pa.Table:
    """The events of these batches in the order of their files and pulses (columns of EVENTS). BadInput as `_table`."""
    meta = _table(folder / META, EVENTS, filters=[("batch_id", "in", batch_ids)])
    return meta.sort_by([("batch_id", "ascending"), ("first_pulse_index", "ascending")])


def require_batches(folder: Path, meta: pa.Table, batch_ids: list[int]) -> None:
    """BadInput where the meta file names no event of one of these batches."""
    if missing := sorted(set(batch_ids) - set(np.unique(meta["batch_id"].to_numpy()).tolist())):
        raise BadInput(f"{folder / META} names no event of batch {missing[0]}")


def read_pulses(folder: Path, batch_id: int) -> Pulses:
    """A batch file. BadInput where it cannot be read as one."""
    table = _table(batch_file(folder, batch_id), PULSES)
    return Pulses(
        *(
            table[name].to_numpy().astype(kind, copy=False)
            for name, kind in zip(
                ("sensor_id", "time", "charge", "auxiliary", "event_id"),
                (np.int16, np.float32, np.float32, np.bool_, np.int64),
                strict=True,
            )
        )
    )


def _table(file: Path, schema: pa.Schema, **how: object) -> pa.Table:
    """The columns of `schema` from a Parquet file. BadInput names the file, and what is not as it must be."""
    try:
        table = pq.read_table(file, columns=schema.names, **how).cast(schema)
        if empty := [name for name in schema.names if table[name].null_count]:
            raise ValueError(f"{', '.join(empty)} has rows without a value")
        return table
    except (OSError, pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise BadInput(
            f"{file} is not as the layout has it ({', '.join(schema.names)}), or is cut off: {reason}"
        ) from None


def require_sound(pulses: Pulses, events: pa.Table, sensors: int, file: Path) -> None:
    """BadInput names the file, the event and what is wrong with it; `events` are those of the file, in its order.

    Every event has pulses of its own, one after the other and all of them; times do not fall within an event; a
    sensor exists; a charge is finite and not below 0; directions are in radians; no event is there twice.
    """
    first, last = (events[name].to_numpy() for name in ("first_pulse_index", "last_pulse_index"))
    ids = events["event_id"].to_numpy()

    def refuse(where: np.ndarray, what: str) -> None:
        """Where something is wrong with events (True for one of them), say so of the first."""
        if where.any():
            raise BadInput(f"{file}: event {ids[where.argmax()]} {what} ({int(where.sum()):,} such events)")

    unique, counts = np.unique(ids, return_counts=True)
    refuse(np.isin(ids, unique[counts > 1]), f"is there twice in {META}")
    refuse(last < first, "has no pulses")
    if len(ids) == 0 or first[0] != 0 or (first[1:] != last[:-1] + 1).any() or last[-1] + 1 != len(pulses.time):
        expected = last[-1] + 1 if len(ids) else 0
        raise BadInput(
            f"{file} holds {len(pulses.time):,} pulses, and the events that {META} names of it hold {expected:,} in a "
            "row: the two do not belong together, or one is cut off"
        )
    azimuth, zenith = (events[name].to_numpy() for name in ("azimuth", "zenith"))
    refuse(~np.isfinite(azimuth + zenith), "has no finite direction")
    refuse((zenith < 0) | (zenith > np.pi), "has a zenith that is not from 0 to pi: is it in radians?")
    refuse((azimuth < 0) | (azimuth > 2 * np.pi), "has an azimuth that is not from 0 to 2 pi: is it in radians?")

    def any_of(wrong: np.ndarray) -> np.ndarray:
        """Events of which any pulse is wrong."""
        return np.add.reduceat(wrong, first, dtype=np.int64) > 0

    refuse(any_of(pulses.event_id != np.repeat(ids, last - first + 1)), "has pulses of another event among its own")
    refuse(any_of((pulses.sensor_id < 0) | (pulses.sensor_id >= sensors)), f"has a sensor beyond the {sensors:,}")
    refuse(any_of(~np.isfinite(pulses.charge)), "has a charge that is not finite")
    refuse(any_of(pulses.charge < 0), "has a charge below 0")
    falls = np.append(False, np.diff(pulses.time) < 0)
    falls[first] = False
    refuse(any_of(falls), "has pulses whose times fall")


class EventFiles:
    """Events of many files by their number, counted file by file; keeps the pulses of the files that were read last.

    With `tasks.training.order.FileOrder` of as many open files each file is read once an epoch. May be asked by
    several threads at once.
    """

    def __init__(self, folder: Path, batch_ids: list[int], open_files: int, max_events: int | None = None):
        """BadInput where the meta file cannot be read, or names no event of a batch. `max_events`: the first ones."""
        meta = read_meta(folder, batch_ids)
        require_batches(folder, meta, batch_ids)
        meta = meta.slice(0, max_events)
        self.event_ids, self.batch_ids = meta["event_id"].to_numpy(), meta["batch_id"].to_numpy()
        self.azimuth, self.zenith = meta["azimuth"].to_numpy(), meta["zenith"].to_numpy()
        self._first, self._last = meta["first_pulse_index"].to_numpy(), meta["last_pulse_index"].to_numpy()
        self.sizes = np.unique(self.batch_ids, return_counts=True)[1].tolist()
        """Events of each file, in the order in which they are counted."""
        self._folder, self._open_files = folder, open_files
        self._open: OrderedDict[int, Pulses] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self.event_ids)

    def pulses_of(self, index: int) -> Pulses:
        """The pulses of one event."""
        file, here = self._file(int(self.batch_ids[index])), slice(self._first[index], self._last[index] + 1)
        return Pulses(*(getattr(file, column)[here] for column in Pulses.__dataclass_fields__))

    def _file(self, batch_id: int) -> Pulses:
        with self._lock:  # the others wait: what they ask for is mostly in the same file
            if batch_id in self._open:
                self._open.move_to_end(batch_id)
                return self._open[batch_id]
            while len(self._open) >= self._open_files:
                self._open.popitem(last=False)
            self._open[batch_id] = read_pulses(self._folder, batch_id)
            return self._open[batch_id]
