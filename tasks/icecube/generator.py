"""Events of a small neutrino telescope, in the layout of the real ones: light of straight tracks, and noise.

What is kept of the real detector: 86 strings of 60 sensors, light at the Cherenkov angle in ice, raw values of the
recorded sizes (times around 10,000 ns with a tail to 78,000, charges over five decades, a third of the pulses noise),
and that few hits carry the direction. What is not: scattering, absorption by depth, the energy spectrum, muon bundles.
So errors here say nothing about errors on real data.
"""

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage import durable
from tasks.icecube.events import BATCHES, EVENTS, GEOMETRY, META, PULSES, batch_file

STRINGS, SENSORS_A_STRING = 86, 60
STRING_SPACING_M, SENSOR_SPACING_M = 125.0, 17.0
LIGHT_M_PER_NS = 0.2998
DETOUR = 1.15
"""Delay of light for each metre beside the track, in metres of the track's own way (Cherenkov, ice)."""
ATTENUATION_M = 60.0
NOISE_PULSES = 25
TRIGGER_NS, WINDOW_NS = 10_000.0, 4_000.0
LATE_SHARE, LATEST_NS = 0.002, 77_785.0
"""Pulses long after the trigger, as in the real files."""
EVENTS_AT_ONCE = 256


def geometry() -> np.ndarray:
    """Places of the sensors in metres, float64 [5160, 3]: strings on a hexagonal grid, nearest to the centre first."""
    side = np.arange(-8, 9)
    grid = np.array([(x + y / 2, y * 3**0.5 / 2) for x in side for y in side]) * STRING_SPACING_M
    strings = grid[np.lexsort((grid[:, 1], grid[:, 0], (grid**2).sum(1).round(3)))][:STRINGS]
    depth = (np.arange(SENSORS_A_STRING) - (SENSORS_A_STRING - 1) / 2) * -SENSOR_SPACING_M
    return np.concatenate([np.repeat(strings, SENSORS_A_STRING, 0), np.tile(depth, STRINGS)[:, None]], axis=1)


def write_events(folder: Path, events: int, events_per_batch: int, seed: int) -> Iterator[int]:
    """Writes geometry, batches and at last the meta file; gives the number of events written after each batch.

    Each batch is a function of `seed` and its number alone. One that is there with its part of the meta file is not
    made again, so that what was interrupted goes on; the meta file ends it, and its parts are deleted.
    """
    places = geometry()
    (folder / BATCHES).mkdir(parents=True, exist_ok=True)
    with durable.new_file(folder / GEOMETRY) as file, file.open("w", newline="") as text:
        rows = csv.writer(text)
        rows.writerow(["sensor_id", "x", "y", "z"])
        rows.writerows([number, *(f"{value:.2f}" for value in place)] for number, place in enumerate(places))
    parts = []
    for batch_id, first in enumerate(range(0, events, events_per_batch), 1):
        end = min(first + events_per_batch, events)
        parts.append(folder / f"meta_{batch_id}.parquet")
        if not parts[-1].exists():
            tables = _batch(places, batch_id, np.arange(first, end), seed)
            for table, file in zip(tables, (batch_file(folder, batch_id), parts[-1]), strict=True):
                with durable.new_file(file) as temporary:
                    pq.write_table(table, temporary)
        yield end
    with durable.new_file(folder / META) as file:
        pq.write_table(pa.concat_tables(map(pq.read_table, parts)), file)
    for part in parts:
        part.unlink()


def _batch(places: np.ndarray, batch_id: int, ids: np.ndarray, seed: int) -> tuple[pa.Table, pa.Table]:
    """The pulses of the events with these `ids`, and their part of the meta file."""
    key = hashlib.sha256(f"icecube events {seed} {batch_id}".encode()).digest()[:16]
    chance, events = np.random.Generator(np.random.Philox(int.from_bytes(key, "big"))), len(ids)
    azimuth, cosine = chance.uniform(0, 2 * np.pi, events), chance.uniform(-1, 1, events)
    zenith = np.arccos(cosine)
    sideways = np.sin(zenith)
    towards = -np.stack([sideways * np.cos(azimuth), sideways * np.sin(azimuth), cosine], axis=1)
    parts = [
        _pulses(places, towards[start : start + EVENTS_AT_ONCE], ids[start], chance)
        for start in range(0, events, EVENTS_AT_ONCE)
    ]
    columns = [np.concatenate(of_parts) for of_parts in zip(*parts, strict=True)]
    typed = [column.astype(field.type.to_pandas_dtype()) for column, field in zip(columns, PULSES, strict=True)]
    pulses = pa.table(typed, schema=PULSES)
    per_event = np.bincount(pulses["event_id"].to_numpy() - ids[0], minlength=events)
    last = np.cumsum(per_event) - 1
    columns = [np.full(events, batch_id), ids, last - per_event + 1, last, azimuth, zenith]
    return pulses, pa.table(columns, schema=EVENTS)


def _pulses(
    places: np.ndarray, towards: np.ndarray, first_event: int, chance: np.random.Generator
) -> tuple[np.ndarray, ...]:
    """Columns of the pulses of events whose particles fly `towards` [events, 3], sorted by event and time."""
    events = len(towards)
    radius, turn = 450 * chance.uniform(0, 1, events) ** 0.5, chance.uniform(0, 2 * np.pi, events)
    middle = np.stack([radius * np.cos(turn), radius * np.sin(turn), chance.uniform(-400, 400, events)], axis=1)
    along = towards @ places.T - (towards * middle).sum(1)[:, None]  # [events, sensors], metres of the track's way
    squares = (places**2).sum(1) - 2 * middle @ places.T + (middle**2).sum(1)[:, None]
    beside = np.sqrt(np.maximum(squares - along**2, 0))
    brightness = 2 * chance.lognormal(0, 0.8, events)[:, None]
    light = chance.poisson(brightness * np.exp(-beside / ATTENUATION_M) / (1 + beside / 20))
    event, sensor = np.nonzero(light)
    event, sensor = (np.repeat(values, light[event, sensor]) for values in (event, sensor))
    time = TRIGGER_NS + (along[event, sensor] + DETOUR * beside[event, sensor]) / LIGHT_M_PER_NS
    time += chance.exponential(15, len(time))
    charge = chance.lognormal(0, 0.4, len(time))

    noise = 1 + chance.poisson(NOISE_PULSES, events)
    of_noise, random = np.repeat(np.arange(events), noise), int(noise.sum())
    event = np.concatenate([event, of_noise])
    sensor = np.concatenate([sensor, chance.integers(0, len(places), random)])
    time = np.concatenate([time, TRIGGER_NS + chance.uniform(-WINDOW_NS, WINDOW_NS, random)])
    charge = np.concatenate([charge, chance.lognormal(-0.5, 0.6, random)])
    auxiliary = np.arange(len(event)) >= len(event) - random

    late = chance.uniform(size=len(time)) < LATE_SHARE
    time[late] = chance.uniform(TRIGGER_NS, LATEST_NS, late.sum())
    charge[late] *= chance.lognormal(2, 2, late.sum())
    order = np.lexsort((time, event))
    columns = (sensor, np.clip(time, 5_714, LATEST_NS), np.clip(charge, 0.025, 2_762), auxiliary, first_event + event)
    return tuple(values[order] for values in columns)
