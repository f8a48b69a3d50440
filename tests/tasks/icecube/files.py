"""A small set of generated files, to read and to spoil."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.icecube.generator import write_events
from tests.once import made_once

EVENTS, PER_BATCH, SEED = 50, 20, 3


@cache
def written() -> Path:
    """Three batches of 20, 20 and 10 events. Read only."""
    return made_once("events", lambda folder: list(write_events(folder, EVENTS, PER_BATCH, SEED)))


def edit(file: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(file)), file)


def with_value(column: str, row: int, value: object) -> Callable[[pa.Table], pa.Table]:
    """The table with another value in one place."""

    def change(table: pa.Table) -> pa.Table:
        values = table[column].to_pylist()
        values[row] = value
        field = table.schema.field(column)
        return table.set_column(table.schema.get_field_index(column), field, pa.array(values, field.type))

    return change
