"""icecube-pulses: the events' files, written or found, looked through one by one before anything reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
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


def pulses(run: StageRun, config: PulsesConfig) -> dict[str, float]:
    """Publishes `files/` where the study writes them. Records: a row for each file, written when it was found sound."""
    events = config.events
    folder = _written(run, events) if isinstance(events, Generated) else Path(events.folder)
    batches: dict[str, list[int]] = {split: events.batches(split) for split in SPLITS}
    split_of = {batch_id: split for split in SPLITS for batch_id in batches[split]}
    digests = events.external_inputs().get("files", {})
    places, meta = len(read_geometry(folder, digests)), read_meta(folder, list(split_of), digests)
    numbers, ids = values(meta, "batch_id"), values(meta, "event_id")
    unique, counts = np.unique(ids, return_counts=True)
    twice = unique[counts > 1]
    if twice.size and not events.skip_bad_events:
        raise BadInput(
            f"event {twice[0]} is there twice in {META} ({twice.size:,} such events): leave one of them out, or "
            "all that are not sound with events.skip_bad_events=true"
        )

    def counted(batch_id: int) -> list[dict[str, Any]]:
        table, file = pulse_table(folder, batch_id, digests), batch_file(folder, batch_id)
        first, end = np.searchsorted(numbers, [batch_id, batch_id + 1]).tolist()
        of_file = meta.slice(first, end - first)
        skipped = require_sound(table, of_file, places, file, events.skip_bad_events)
        row = {"batch_id": batch_id, "split": split_of[batch_id], "events": len(of_file), "pulses": len(table)}
        if events.skip_bad_events:
            row |= _left_out(run, skipped, twice, of_file, file)
        return [row]

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


def _left_out(
    run: StageRun, skipped: dict[str, list[int]], twice: np.ndarray, of_file: pa.Table, file: Path
) -> dict[str, Any]:
    """Fields for the row of a file with `skip_bad_events`: how many events are left, and what is wrong with the others.

    BadInput where none is left.
    """
    told = [event for ids in skipped.values() for event in ids]
    if elsewhere := sorted(set(np.intersect1d(values(of_file, "event_id"), twice).tolist()) - set(told)):
        skipped = skipped | {f"is there twice in {META}, of two files": elsewhere}
    for what, ids in skipped.items():
        run.log.warning("%s: %d events left out: event %d %s", file, len(ids), ids[0], what)
    left = len(of_file) - sum(map(len, skipped.values()))
    if not left:
        raise BadInput(f"{file}: none of its {len(of_file):,} events is sound: {'; '.join(skipped)}")
    return {"events": left, "skipped": json.dumps(skipped)}


def splits_of(events: StageInput) -> dict[Split, SplitFacts]:
    """The splits as the records of icecube-pulses have them: each file that was asked for once."""
    asked = events.configuration(PulsesConfig).events
    required = [(split, batch_id) for split in SPLITS for batch_id in asked.batches(split)]
    rows = read_each(events.path / "records.parquet", ("split", "batch_id"), required)
    return {
        split: _facts([rows[key] for key in required if key[0] == split], asked.max_events(split)) for split in SPLITS
    }


def _facts(rows: list[dict[str, Any]], max_events: int | None) -> SplitFacts:
    events = sum(row["events"] for row in rows)
    skipped: dict[str, list[int]] = {}
    for row in rows:
        for what, ids in json.loads(row.get("skipped", "{}")).items():
            skipped.setdefault(what, []).extend(ids)
    return SplitFacts(
        batches=[row["batch_id"] for row in rows],
        events=min(events, max_events or events),
        pulses=sum(row["pulses"] for row in rows),
        skipped=skipped,
    )


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
            EventFiles(folder, facts.batches, config.open_files, facts.events, digests, facts.left_out)
            for facts in (splits["train"], splits["validation"])
        )
        return cls(train, validation, read_geometry(folder, digests))


def folder_of(events: StageInput, config: OfFolder) -> Path:
    return Path(config.folder) if config.folder else events.path / WRITTEN


def require_sound(
    table: pa.Table, events: pa.Table, sensors: int, file: Path, skip: bool = False
) -> dict[str, list[int]]:
    """BadInput names the file, the event and what is wrong with it; `events` are those of the file, in its order.

    Every event has pulses of its own, one after the other and all of them; times do not fall within an event; a
    sensor exists; a charge is finite and not below 0; directions are in radians; no event is there twice; nothing is
    without a value. With `skip` nothing is raised: returns what is wrong with which events, by their ids, each told
    once.
    """
    is_faulty: np.ndarray = np.zeros(len(events), dtype=bool)
    ids, first = values(events, "event_id"), {}
    for wrong, what, row in _faults(table, events, sensors, file, skip):
        if not (new := wrong & ~is_faulty).any():
            continue
        if not skip:
            where = f", the first in row {row:,}" if row else ""
            raise BadInput(
                f"{file}: event {ids[wrong.argmax()]} {what} ({int(wrong.sum()):,} such events{where}). Repair it, or "
                "leave out all that are not sound with events.skip_bad_events=true"
            )
        first[what], is_faulty = ids[new].tolist(), is_faulty | wrong
    return first


def _faults(
    table: pa.Table, events: pa.Table, sensors: int, file: Path, skip: bool
) -> Iterator[tuple[np.ndarray, str, int | None]]:
    """Which events [E] are wrong, what is wrong with them, and in which row of the file, as a person counts it."""
    for name in EVENTS.names:
        if events[name].null_count:
            yield events[name].is_null().to_numpy(), f"has no {name} in {META}", None
    ids, first, last = (values(events, name) for name in ("event_id", "first_pulse_index", "last_pulse_index"))
    unique, counts = np.unique(ids, return_counts=True)
    yield np.isin(ids, unique[counts > 1]), f"is there twice in {META}", None
    yield last < first, "has no pulses", None
    for name, largest, fault in (
        ("zenith", np.pi, "a zenith that is not from 0 to pi"),
        ("azimuth", 2 * np.pi, "an azimuth that is not from 0 to 2 pi"),
    ):
        angle = values(events, name)
        yield ~np.isfinite(angle), f"has no finite direction ({name})", None
        # compared with what its precision can say: float32 has no pi, and the one nearest to it is above
        yield (angle < 0) | (angle > angle.dtype.type(largest)), f"has {fault}: is it in radians?", None

    pulses = as_pulses(table)
    if skip:
        others = _has_others(pulses.event_id, ids, first, last)
        yield others, f"has other pulses than {META} says", None
        begins, owners = first[~others], pulses.event_id
    else:
        _require_in_a_row(first, last, len(table), file)
        begins, owners = first, np.repeat(ids, last - first + 1)

    def of_events(wrong: np.ndarray) -> tuple[np.ndarray, int | None]:
        """Events of which any pulse is wrong, and the row of the first such pulse."""
        if not wrong.any():
            return np.zeros(len(ids), dtype=bool), None
        before = np.append(0, np.cumsum(wrong))
        begin = np.clip(first, 0, len(wrong))
        return before[np.clip(last + 1, begin, len(wrong))] > before[begin], int(wrong.argmax()) + 1

    for name in PULSES.names:
        if table[name].null_count:
            faulty, row = of_events(table[name].is_null().to_numpy())
            yield faulty, f"has a pulse without {name}", row
    sensor, falls = values(table, "sensor_id"), np.append(False, np.diff(pulses.time) < 0)
    falls[begins] = False
    for wrong, what in (
        (pulses.event_id != owners, "has pulses of another event among its own"),
        ((sensor < 0) | (sensor >= sensors), f"has a sensor beyond the {sensors:,}"),
        (~np.isfinite(pulses.charge), "has a charge that is not finite"),
        (pulses.charge < 0, "has a charge below 0"),
        (falls, "has pulses whose times fall"),
    ):
        faulty, row = of_events(wrong)
        yield faulty, what, row


def _require_in_a_row(first: np.ndarray, last: np.ndarray, pulses: int, file: Path) -> None:
    """BadInput unless the events have the pulses of the file, one event after the other."""
    expected = int(last[-1]) + 1 if len(last) else 0
    if expected != pulses or not len(first) or first[0] != 0 or (first[1:] != last[:-1] + 1).any():
        raise BadInput(
            f"{file} holds {pulses:,} pulses, and the events that {META} names of it hold {expected:,} in a row: the "
            "two do not belong together, or one is cut off"
        )


def _has_others(event_ids: np.ndarray, ids: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Events [E] of which the pulses `first` to `last` are not those, and all of those, that have its id in a row."""
    starts = np.flatnonzero(np.append(True, np.diff(event_ids) != 0))[: len(event_ids)]
    place = np.minimum(np.searchsorted(starts, first), len(starts) - 1)
    if not len(starts):
        return np.ones(len(ids), dtype=bool)
    ends = np.append(starts[1:], len(event_ids))
    return (starts[place] != first) | (ends[place] != last + 1) | (event_ids[starts[place]] != ids)
