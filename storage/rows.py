"""Metric and timing rows, kept as JSON lines.

A metrics file must be a function of configuration and data, also after kills: each checkpoint carries its length
and digest, and a continuation cuts it back to there. It does so in a new file under the same name: whoever was taken
for dead between looking at its lock and writing a row has the old file open, and comes back to write there.
"""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

from storage import durable, reading
from storage.locks import Lock
from storage.reading import NUMBER, fits


class Position(TypedDict):
    """How far a file of rows had come, as a checkpoint carries it."""

    length: int
    sha256: str


@dataclass
class _Written:
    length: int
    digest: hashlib._Hash


class Rows:
    """An append-only file of JSON lines; with a `lock`, one that only its holder appends to."""

    def __init__(self, path: Path, lock: Lock | None = None, positions: bool = True) -> None:
        """Without `positions` there is no `position`, and the present content is never read."""
        self._path, self._lock, self._positions = path, lock, positions

    @cached_property
    def _descriptor(self) -> int:
        """The file as it was when this process came to it, whatever has its name later."""
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        weakref.finalize(self, os.close, descriptor)
        return descriptor

    @cached_property
    def _written(self) -> _Written:
        """The length and digest of the present content."""
        present = reading.read_bytes(self._path, None) if self._path.exists() else b""
        return _Written(len(present), hashlib.sha256(present))

    def append(self, row: Mapping[str, object]) -> None:
        line = durable.canonical_json(row) + b"\n"
        descriptor = self._descriptor  # before the lock is looked at
        if self._lock is not None:
            self._lock.check()
        written = self._written if self._positions else None  # before this row
        try:
            left = line
            while left:  # a full disk takes a part
                left = left[os.write(descriptor, left) :]
        except OSError as error:
            raise durable.disk_full(error, self._path) or error from None
        if written is not None:
            written.length += len(line)
            written.digest.update(line)

    def position(self) -> Position:
        """The length in bytes and sha256 of the present content, for a checkpoint; `sync` makes it durable.

        Raises ValueError when there are rows of another process, such as a holder taken for dead that came back.
        """
        ours, present, written = os.fstat(self._descriptor), os.stat(self._path), self._written
        length = present.st_size
        if length != written.length or not os.path.samestat(present, ours):
            raise ValueError(f"another process wrote to {self._path}: {length} bytes, {written.length} of them ours")
        return {"length": length, "sha256": written.digest.hexdigest()}

    def sync(self) -> None:
        """Makes every row durable, before a checkpoint that names their position. Any thread may call it."""
        os.fsync(self._descriptor)

    def cut_back(self, position: Position | None) -> None:
        """Cuts the file to a position that a checkpoint carries (None: to nothing).

        Raises ValueError when the content before the position has changed.
        """
        length = position["length"] if position else 0
        content = reading.read_bytes(self._path, None)[:length] if self._path.exists() else b""
        digest = hashlib.sha256(content)
        if position and digest.hexdigest() != position["sha256"]:
            raise ValueError(f"{self._path} has other rows before byte {length}: it was altered, or the work went back")
        if self._lock is not None:
            self._lock.check()
        durable.write_bytes(self._path, content)
        self.__dict__.pop("_descriptor", None)
        self._written = _Written(length, digest)


def rows_of(file: Path) -> list[dict[str, Any]]:
    """Rows of a file so far; what cannot be read is left out."""
    return read_rows(file)[0]


def read_rows(file: Path) -> tuple[list[dict[str, Any]], int]:
    """The same, and how many lines are damaged; a last one that is just being written is not."""
    try:
        lines = reading.read_bytes(file, reading.ROWS_BYTES).split(b"\n")
    except (OSError, ValueError):
        return [], 0
    rows = [_row(line) for line in lines]
    return [row for row in rows if row is not None], rows[:-1].count(None)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = reading.json_value(line, "a row")
    except ValueError:
        return None
    if not (isinstance(row, dict) and "step" in row and fits(row, {"step": NUMBER})):
        return None
    trivial = row.get("trivial") or {}
    return row if isinstance(trivial, dict) and all(fits(number, NUMBER) for number in trivial.values()) else None
