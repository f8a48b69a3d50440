"""Soundness of the events of a batch file, each of them, before anything is trained on them."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from storage.errors import BadInput
from tasks.icecube.events import EVENTS, META, PULSES, as_pulses, values


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
