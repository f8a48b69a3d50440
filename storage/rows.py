"""Rows that are kept: metric and timing rows as JSON lines, records as Parquet written in parts.

A metrics file must be a function of configuration and data, also after kills: each checkpoint carries its length
and digest, and a continuation cuts it back to there. A record part counts only with the digest beside it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage import durable
from storage.locks import Lock


@dataclass
class _Ours:
    length: int
    digest: Any


class Rows:
    """An append-only file of JSON lines; with a `lock`, one that only its holder appends to."""

    def __init__(self, path: Path, lock: Lock | None = None, positions: bool = True) -> None:
        """Without `positions` none can be asked for, and what stands there already is never read."""
        self._path, self._lock, self._positions = path, lock, positions

    @cached_property
    def _ours(self) -> _Ours:
        """How much stands there, and its digest so far."""
        present = self._path.read_bytes() if self._path.exists() else b""
        return _Ours(len(present), hashlib.sha256(present))

    def append(self, row: dict[str, Any]) -> None:
        line = durable.canonical_json(row) + b"\n"
        if self._lock is not None:
            self._lock.check()
        ours = self._ours if self._positions else None  # what stood there before this row
        try:
            with self._path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise durable.disk_full(error, self._path) or error from None
        if ours is not None:
            ours.length += len(line)
            ours.digest.update(line)

    def position(self) -> dict[str, Any]:
        """Length in bytes and sha256 of what stands there now, for a checkpoint; `sync` makes it durable.

        Raises ValueError when there are rows of another process, such as a holder taken for dead that came back.
        """
        length = self._path.stat().st_size if self._path.exists() else 0
        ours = self._ours
        if length != ours.length:
            raise ValueError(f"{self._path} has {length} bytes, {ours.length} are ours: another process wrote to it")
        return {"length": length, "sha256": ours.digest.hexdigest()}

    def sync(self) -> None:
        """Makes every row durable; must be done before a checkpoint that names their position is. Any thread."""
        with self._path.open("ab") as file:
            os.fsync(file.fileno())

    def cut_back(self, position: dict[str, Any] | None) -> None:
        """Cuts the file to a position that a checkpoint carries (None: to nothing).

        Raises ValueError when what stands before the position is not what stood there.
        """
        length = position["length"] if position else 0
        kept = self._path.read_bytes()[:length] if self._path.exists() else b""
        digest = hashlib.sha256(kept)
        if position and digest.hexdigest() != position["sha256"]:
            raise ValueError(f"{self._path} was altered before byte {length}")
        if self._lock is not None:
            self._lock.check()
        with self._path.open("ab") as file:  # a death on the way leaves what the next attempt cuts back again
            file.truncate(length)
            os.fsync(file.fileno())
        self._ours = _Ours(length, digest)


class RecordParts:
    """Records of one run, written in parts so that a killed attempt loses at most one part.

    `identity` says what the parts belong to; a part made for other inputs, torn or altered is written again.
    """

    def __init__(self, directory: Path, identity: dict[str, Any], lock: Lock) -> None:
        self._directory, self._identity, self._lock = directory, identity, lock

    def has(self, key: str) -> bool:
        """Whether the part `key` is there and verifies."""
        parquet, described = self._names(key)
        try:
            note = durable.read_json(described)
            return note == self._note(key, parquet)
        except (OSError, ValueError):
            return False

    def count(self) -> int:
        """How many parts there are that were made for these inputs, by their notes alone."""
        return sum(self._is_ours(note) for note in self._directory.glob("*.json"))

    def _is_ours(self, note: Path) -> bool:
        try:
            return durable.read_json(note)["identity"] == self._identity
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write(self, key: str, rows: list[dict[str, Any]]) -> None:
        """Durably writes the part `key`; rows are dictionaries with equal keys."""
        self._directory.mkdir(parents=True, exist_ok=True)
        parquet, described = self._names(key)
        self._lock.check()
        with durable.new_file(parquet) as temporary:
            pq.write_table(pa.Table.from_pylist(rows), temporary)
        durable.write_json(described, self._note(key, parquet))

    def merge(self, keys: list[str], path: Path) -> str:
        """Writes the parts `keys`, in that order, as one Parquet file; returns the records digest."""
        with durable.new_file(path) as temporary:
            # a list that is empty throughout a part has no type of its own there
            parts = [pq.read_schema(self._names(key)[0]) for key in keys]
            schema = pa.unify_schemas(parts, promote_options="permissive")
            with pq.ParquetWriter(temporary, schema) as writer:
                for key in keys:
                    writer.write_table(pq.read_table(self._names(key)[0]).cast(schema))
        return records_digest(pq.read_table(path).to_pylist())

    def _names(self, key: str) -> tuple[Path, Path]:
        if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", key):
            raise ValueError(f"{key!r} cannot name a record part")
        return self._directory / f"{key}.parquet", self._directory / f"{key}.json"

    def _note(self, key: str, parquet: Path) -> dict[str, Any]:
        return {"part": key, "sha256": durable.sha256_file(parquet), "identity": self._identity}


def records_digest(rows: Iterable[dict[str, Any]]) -> str:
    """sha256 over the rows sorted by (model, example_id), as canonical JSON with floats in hex."""
    digest = hashlib.sha256()
    for row in sorted(rows, key=lambda row: (row["model"], row["example_id"])):
        exact = {key: value.hex() if isinstance(value, float) else value for key, value in row.items()}
        digest.update(durable.canonical_json(exact) + b"\n")
    return digest.hexdigest()
