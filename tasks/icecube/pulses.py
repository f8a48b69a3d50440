"""icecube-pulses: the events' files, written or found, looked through one by one before anything reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa

from storage import durable
from storage.errors import BadInput
from storage.records import read_each
from tasks.icecube.events import (
    EVENTS,
    META,
    PULSES,
    EventFiles,
    as_pulses,
    batch_file,
    pulse_table,
    read_geometry,
    read_meta,
    values,
)
from tasks.icecube.generator import write_events
from tasks.icecube.results import SplitFacts
from tasks.icecube.stages import OfFolder, PulsesConfig, ReadsEvents
from tasks.icecube.study import Generated, Split
from tasks.stage.preflight import require_disk
from tasks.stage.run import StageInput, StageRun

SPLITS: tuple[Split, ...] = get_args(Split)
BYTES_PER_EVENT = 1_100
"""Size of a generated event on disk; measured."""
WRITTEN = "files"
REMEDY = f"repair it, or write the files and {META} without it"


def pulses(run: StageRun, config: PulsesConfig) -> dict[str, float]:
    """Publishes `files/` where the study writes them. Records: a row for each file, written when it was found sound."""
    events = config.events
    folder = _written(run, events) if isinstance(events, Generated) else Path(events.folder)
    batches: dict[str, list[int]] = {split: events.batches(split) for split in SPLITS}
    split_of = {batch_id: split for split in SPLITS for batch_id in batches[split]}
    digests = events.external_inputs().get("files", {})
    places, meta = len(read_geometry(folder, digests)), read_meta(folder, list(split_of), digests)
    numbers = values(meta, "batch_id")
    unique, counts = np.unique(values(meta, "event_id"), return_counts=True)
    twice = unique[counts > 1]
    if twice.size:
        raise BadInput(f"event {twice[0]} is there twice in {META} ({twice.size:,} such events): {REMEDY}")

    def counted(batch_id: int) -> list[dict[str, Any]]:
        table, (first, end) = pulse_table(folder, batch_id, digests), np.searchsorted(numbers, [batch_id, batch_id + 1])
        of_file = meta.slice(first, end - first)
        require_sound(table, of_file, places, batch_file(folder, batch_id))
        return [{"batch_id": batch_id, "split": split_of[batch_id], "events": len(of_file), "pulses": len(table)}]

    parts = {f"batch-{batch_id:06d}": batch_id for batch_id in split_of}
    run.merge_records(run.each(parts, counted, "files", "is each sound?"), ("batch_id",))
    return {}


def _written(run: StageRun, events: Generated) -> Path:
    """The folder of the files that the study writes; a batch that an earlier attempt finished is not made again."""
    folder, total = run.directory / WRITTEN, events.train_events + events.validation_events
    run.outputs.append(WRITTEN)
    if (folder / META).exists():  # the last that is written
        return folder
    require_disk(run.directory, total * BYTES_PER_EVENT)
    folder.mkdir(exist_ok=True)
    for number, done in enumerate(write_events(folder, total, events.events_per_batch, events.data_seed), 1):
        run.progress.update(done, total, "events", note="written")
        if not run.records.has(f"written-{number:06d}"):  # a sign of progress for whoever counts attempts in vain
            run.records.write(f"written-{number:06d}", [{"events": done}])
        run.stop.check()
    return folder


def splits_of(events: StageInput) -> dict[Split, SplitFacts]:
    """The splits as the records of icecube-pulses have them: each file that was asked for once."""
    asked = events.configuration(PulsesConfig).events
    required = [(split, batch_id) for split in SPLITS for batch_id in asked.batches(split)]
    rows = read_each(events.path / "records.parquet", ("split", "batch_id"), required)

    def facts(split: Split) -> SplitFacts:
        of_split = [row for key, row in rows.items() if key[0] == split]
        events, most = sum(row["events"] for row in of_split), asked.max_events(split)
        return SplitFacts(
            batches=[row["batch_id"] for row in of_split],
            events=min(events, most or events),
            pulses=sum(row["pulses"] for row in of_split),
        )

    return {split: facts(split) for split in SPLITS}


@dataclass(frozen=True)
class Data:
    """The two splits, and the places of the sensors by their ids, float32 [sensors, 3]."""

    train: EventFiles
    validation: EventFiles
    places: np.ndarray

    @classmethod
    def open(cls, events: StageInput, config: ReadsEvents) -> Data:
        """BadInput names a file that is not what icecube-pulses found sound."""
        splits, folder = splits_of(events), folder_of(events, config)
        external = durable.read_json(events.run.stage_file)["external"]
        digests: dict[str, str] = external.get("events", {}).get("files", {})
        train, validation = (
            EventFiles(folder, facts.batches, config.open_files, facts.events, digests)
            for facts in (splits["train"], splits["validation"])
        )
        return cls(train, validation, read_geometry(folder, digests))


def folder_of(events: StageInput, config: OfFolder) -> Path:
    return Path(config.folder) if config.folder else events.path / WRITTEN


def require_sound(table: pa.Table, events: pa.Table, sensors: int, file: Path) -> None:
    """BadInput names the file, the first event that is wrong, and in which row; `events` are the file's, in its order.

    Every event has pulses of its own, one after the other and all of them; times do not fall within an event; a
    sensor exists; a charge is finite and not below 0; directions are in radians; nothing is without a value.
    """
    ids = values(events, "event_id")

    def refuse(wrong: np.ndarray, what: str, rows: np.ndarray | None = None) -> None:
        """`wrong` says which events are, or, where `rows` has the place of the event of each pulse, which pulses."""
        if not wrong.any():
            return
        faulty = np.flatnonzero(wrong) if rows is None else np.unique(rows[wrong])
        where = "" if rows is None else f", the first in row {int(wrong.argmax()) + 1:,}"
        raise BadInput(f"{file}: event {ids[faulty[0]]} {what} ({len(faulty):,} such events{where}): {REMEDY}")

    for name in EVENTS.names:
        refuse(_without_value(events, name), f"has no {name} in {META}")
    first, last = values(events, "first_pulse_index"), values(events, "last_pulse_index")
    refuse(last < first, "has no pulses")
    for name, largest, limit in (("zenith", np.pi, "pi"), ("azimuth", 2 * np.pi, "2 pi")):
        angle = values(events, name)
        refuse(~np.isfinite(angle), f"has no finite direction ({name})")
        # compared with what its precision can say: float32 has no pi, and the one nearest to it is above
        beyond = (angle < 0) | (angle > angle.dtype.type(largest))
        refuse(beyond, f"has a direction ({name}) that is not from 0 to {limit}: is it in radians?")

    _require_in_a_row(first, last, len(table), file)
    pulses, owner = as_pulses(table), np.repeat(np.arange(len(ids)), last - first + 1)
    for name in PULSES.names:
        refuse(_without_value(table, name), f"has a pulse without {name}", owner)
    sensor, falls = values(table, "sensor_id"), np.append(False, np.diff(pulses.time) < 0)
    falls[first] = False
    refuse(pulses.event_id != ids[owner], "has pulses of another event among its own", owner)
    refuse((sensor < 0) | (sensor >= sensors), f"has a sensor beyond the {sensors:,}", owner)
    refuse(~np.isfinite(pulses.charge), "has a charge that is not finite", owner)
    refuse(pulses.charge < 0, "has a charge below 0", owner)
    refuse(falls, "has pulses whose times fall", owner)


def _without_value(table: pa.Table, name: str) -> np.ndarray:
    return table[name].is_null().to_numpy()


def _require_in_a_row(first: np.ndarray, last: np.ndarray, pulses: int, file: Path) -> None:
    """BadInput unless the events have the pulses of the file, one event after the other."""
    expected = int(last[-1]) + 1 if len(last) else 0
    if expected != pulses or not len(first) or first[0] != 0 or (first[1:] != last[:-1] + 1).any():
        raise BadInput(
            f"{file} holds {pulses:,} pulses, and the events that {META} names of it hold {expected:,} in a row: the "
            "two do not belong together, or one is cut off"
        )
