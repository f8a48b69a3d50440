"""The layout of the Kaggle competition "IceCube - Neutrinos in Deep Ice" (2023), which is read and written here.

    sensor_geometry.csv           sensor_id, x, y, z (metres)
    train_meta.parquet            one row an event: batch_id, event_id, first_pulse_index, last_pulse_index, azimuth,
                                  zenith (radians)
    train/batch_<batch_id>.parquet    one row a pulse, event after event: sensor_id, time (ns), charge (photoelectrons),
                                  auxiliary (whether the pulse is likely to be noise), event_id

Indices of pulses count the rows of the event's own batch file, and the last one belongs to the event.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa

GEOMETRY, META, BATCHES = "sensor_geometry.csv", "train_meta.parquet", "train"

PULSES = pa.schema(
    [
        ("sensor_id", pa.int16()),
        ("time", pa.int64()),
        ("charge", pa.float64()),
        ("auxiliary", pa.bool_()),
        ("event_id", pa.int64()),
    ]
)
EVENTS = pa.schema(
    [
        ("batch_id", pa.int64()),
        ("event_id", pa.int64()),
        ("first_pulse_index", pa.int64()),
        ("last_pulse_index", pa.int64()),
        ("azimuth", pa.float64()),
        ("zenith", pa.float64()),
    ]
)


def batch_file(folder: Path, batch_id: int) -> Path:
    return folder / BATCHES / f"batch_{batch_id}.parquet"


def files_of(folder: Path, batch_ids: Iterable[int]) -> list[Path]:
    """Every file that is read for these batches."""
    return [folder / GEOMETRY, folder / META, *(batch_file(folder, batch_id) for batch_id in batch_ids)]
