"""Records: one row for each example, written in parts, merged into one Parquet file, and read by row groups.

A part counts only with the digest beside it. Memory holds a fixed number of rows, however many a part or the file has;
only Parquet's metadata grows, by 2 KB for each column of a row group.
"""

import math
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from functools import reduce
from itertools import chain, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from storage import durable
from storage.errors import BadInput, CheckFailed, require_each_once
from storage.locks import Lock

Rows = list[dict[str, Any]]
"""Records: a column's name -> its value, of each row."""
KEYS = ("loop", "item", "row")
"""The key columns of rows that a loop over items told."""
ROW_GROUP_ROWS = 32_768
"""The most rows of a row group, and the most held as Python objects; a part begins a new group."""


class RecordParts:
    """Records of one run, written in parts so that a killed attempt loses at most one part.

    `identity` says which inputs the parts belong to; a part of other inputs, torn or altered is written again.
    """

    def __init__(self, directory: Path, identity: dict[str, object], lock: Lock) -> None:
        self._directory, self._identity, self._lock = directory, identity, lock

    def has(self, part: str) -> bool:
        """True if the part is there and verifies."""
        parquet, note_file = self._names(part)
        try:
            note = durable.read_json(note_file)
            return note == self._note(part, parquet)
        except (OSError, ValueError):
            return False

    def count(self) -> int:
        """The number of parts that were made for these inputs, by their notes alone."""
        return sum(self._is_ours(note) for note in self._directory.glob("*.json"))

    def others(self, prefix: str, than: Collection[str]) -> list[str]:
        """The parts that begin so and were made for these inputs, by their notes alone, which are none of `than`."""
        notes = sorted(self._directory.glob(f"{prefix}*.json"))
        return [note.stem for note in notes if note.stem not in than and self._is_ours(note)]

    def schema(self, parts: Iterable[str], but: Sequence[str] = KEYS) -> pa.Schema:
        """The columns of these parts but KEYS, for `fitting`."""
        schemas = [pq.read_schema(self._names(part)[0]) for part in parts]
        return pa.schema([column for column in _common(schemas) if column.name not in but])

    def _is_ours(self, note: Path) -> bool:
        try:
            return durable.read_json(note)["identity"] == self._identity
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write(self, part: str, rows: Iterable[Mapping[str, object]]) -> None:
        """Durably writes a part; rows are dictionaries, and may come from a generator.

        Raises CheckFailed for a row with other names than the first, and so does `merge` for a part.
        """
        self._directory.mkdir(parents=True, exist_ok=True)
        parquet, note_file = self._names(part)
        self._lock.check()
        remaining = _alike(rows)
        pieces = iter(lambda: list(islice(remaining, ROW_GROUP_ROWS)), [])
        tables = (pa.Table.from_pylist(piece) for piece in pieces)
        with durable.new_file(parquet) as temporary, _spilled(self._directory, tables, ROW_GROUP_ROWS) as readers:
            schema = _common(reader.schema for reader in readers)
            _write(temporary, schema, chain.from_iterable(readers))
            self._lock.check()
        durable.write_json(note_file, self._note(part, parquet))

    def merge(self, parts: Sequence[str], path: Path, key_columns: Sequence[str]) -> None:
        """Writes the parts, in that order, as one Parquet file. CheckFailed unless each row has a key of its own."""
        files = [self._names(part)[0] for part in parts]
        with durable.new_file(path) as temporary:
            schema = _common(pq.read_schema(file) for file in files)
            _write(temporary, schema, chain.from_iterable(map(_batches, files)))
            _require_keys(temporary, key_columns)

    def _names(self, part: str) -> tuple[Path, Path]:
        if not re.fullmatch(r"[a-z0-9][a-z0-9.@_-]*", part):
            raise ValueError(f"{part!r} cannot name a record part")
        return self._directory / f"{part}.parquet", self._directory / f"{part}.json"

    def _note(self, part: str, parquet: Path) -> dict[str, object]:
        return {"part": part, "sha256": durable.sha256_file(parquet), "identity": self._identity}


def fitting(row: Mapping[str, Any], schema: pa.Schema | None) -> tuple[pa.Schema, dict[str, Any]]:
    """The columns of rows so far with those of this one, and the row with None for a name that only they have.

    BadInput names a column that they have not, and a value that is of another kind or that no record holds.
    """
    if schema is not None and (new := row.keys() - {*schema.names}):
        raise BadInput(
            f"run.row: {min(new)}={row[min(new)]!r} is new, and rows before have {', '.join(schema.names)} alone: give "
            "each row the same names, None where there is nothing to say"
        )
    columns = []
    for name, value in row.items():
        before = [] if schema is None else [pa.schema([schema.field(name)])]
        try:
            if isinstance(value, Set):
                raise TypeError("a set has no order")
            plain = _plain(value)
            durable.canonical_json(None if isinstance(plain, float) else plain)
            own = pa.Table.from_pylist([{name: value}]).schema
            columns += pa.unify_schemas([*before, own], promote_options="permissive")
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            was = f", and in rows before it was {before[0].field(name).type}" if before else ""
            raise BadInput(
                f"run.row: {name}={value!r}, of {type(value).__name__}, cannot stand in records{was} ({error}): give a "
                "number, text, or a list of them, of one kind in each row"
            ) from None
    left = [] if schema is None else [column for column in schema if column.name not in row]
    return pa.schema([*columns, *left]), {column.name: row.get(column.name) for column in [*columns, *left]}


def _plain(value: Any) -> Any:
    """A value as it comes back from a record."""
    return pa.array([value]).to_pylist()[0]


def read_records(file: Path, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a Parquet file in order, with all columns or some; memory holds one row group."""
    for batch in _batches(file, columns):
        yield from batch.to_pylist()


def read_each(
    file: Path, key_columns: Sequence[str], required: Iterable[Any], optional: Collection[str] = ()
) -> dict[Any, dict[str, Any]]:
    """The rows of a Parquet file by their keys. CheckFailed unless it holds each required one once, and no other; what
    is `optional` may be without a value."""
    try:
        rows = [(itemgetter(*key_columns)(row), row) for row in read_records(file)]
    except (OSError, KeyError, pa.ArrowException) as error:
        raise BadInput(f"{file} holds no records with {' and '.join(key_columns)}: {error!r}") from None
    for key, row in rows:
        for name, value in row.items():
            nothing = value is None and name not in optional
            if nothing or (isinstance(value, float) and not math.isfinite(value)):
                raise CheckFailed(f"records are numbers and texts, in {file}", f"{name} of {key} is {value}", "one")
    require_each_once(
        f"the records hold each {' and '.join(key_columns)} once", (key for key, _ in rows), required, f" in {file}"
    )
    return dict(rows)


def _require_keys(file: Path, key_columns: Sequence[str]) -> None:
    """CheckFailed where a key column is missing or holds neither text nor whole numbers, and names a key that two rows
    have. Memory holds the keys alone."""
    schema = pq.read_schema(file)
    for column in key_columns:
        kind = schema.field(column).type if column in schema.names else "missing"
        if kind not in (pa.string(), pa.int64()):
            raise CheckFailed("records have the columns of their key", f"{column}: {kind}", "text or whole numbers")
    keys = pq.read_table(file, columns=[*key_columns]).sort_by([(column, "ascending") for column in key_columns])
    for column in key_columns:
        if keys.column(column).null_count:
            raise CheckFailed("every record has a key", f"one without {column}", "a value")
    pairs = max(0, len(keys) - 1)
    equal = (pc.equal(keys.column(column).slice(1), keys.column(column).slice(0, pairs)) for column in key_columns)
    if (place := pc.index(reduce(pc.and_, equal), True).as_py()) >= 0:
        quoted = ", ".join(f"{column}={value!r}" for column, value in keys.slice(place, 1).to_pylist()[0].items())
        advice = "Find the stage that wrote the example twice, or name key columns in which its rows differ"
        raise CheckFailed("no two records have the same key", f"two of {quoted}", "one", advice)


@contextmanager
def _spilled(folder: Path, tables: Iterable[pa.Table], batch_rows: int) -> Iterator[list[pa.RecordBatchReader]]:
    """Writes each table to disk, to be read in batches; the file has no name, so a death leaves nothing."""
    with tempfile.TemporaryFile(dir=folder) as file:
        ends = [0, *_append(file, tables, batch_rows)]
        source = pa.PythonFile(file, "r")
        yield [pa.ipc.open_stream(source.get_stream(start, end - start)) for start, end in pairwise(ends)]


def _alike(rows: Iterable[Mapping[str, object]]) -> Iterator[Mapping[str, object]]:
    columns: Set[str] | None = None
    for number, row in enumerate(rows):
        columns = row.keys() if columns is None else columns
        if row.keys() != columns:
            raise _other_columns(f"row {number:,}", row.keys() ^ columns)
        yield row


def _other_columns(what: str, columns: Iterable[str]) -> CheckFailed:
    measured = f"{', '.join(sorted(columns))}: {what} differs from the first"
    return CheckFailed("all records have the same columns", measured, "no column that some have and some have not")


def _append(file: IO[bytes], tables: Iterable[pa.Table], batch_rows: int) -> Iterator[int]:
    """Writes the tables one after the other; yields the end of each."""
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    for table in tables:
        with pa.ipc.new_stream(file, table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=batch_rows)
        del table  # or the next one would be made beside it
        yield file.tell()


def _batches(file: Path, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
    with pq.ParquetFile(file) as parquet:
        yield from parquet.iter_batches(ROW_GROUP_ROWS, columns=columns, use_threads=False)


def _common(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """The common schema; a list that is always empty in a part has no type there."""
    schemas = list(schemas)
    columns: set[str] = set()
    for number, schema in enumerate(schemas):
        columns = columns or {*schema.names}
        if different := columns.symmetric_difference(schema.names) if schema.names else ():
            raise _other_columns(f"part {number:,}", different)
    return pa.unify_schemas([pa.schema([]), *schemas], promote_options="permissive")


def _write(file: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with pq.ParquetWriter(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch.select(schema.names).cast(schema))
