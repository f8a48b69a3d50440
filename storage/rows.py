"""Metric and timing rows, kept as JSON lines.

A metrics file must be a function of configuration and data, also after kills: each checkpoint carries its length
and digest, and a continuation cuts it back to there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypedDict

from storage import durable, reading
from storage.locks import Lock


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
    def _written(self) -> _Written:
        """The length and digest of the present content."""
        present = reading.read_bytes(self._path, None) if self._path.exists() else b""
        return _Written(len(present), hashlib.sha256(present))

    def append(self, row: Mapping[str, object]) -> None:
        line = durable.canonical_json(row) + b"\n"
        if self._lock is not None:
            self._lock.check()
        written = self._written if self._positions else None  # before this row
        try:
            with self._path.open("ab") as file:
                file.write(line)
        except OSError as error:
            raise durable.disk_full(error, self._path) or error from None
        if written is not None:
            written.length += len(line)
            written.digest.update(line)

    def position(self) -> Position:
        """The length in bytes and sha256 of the present content, for a checkpoint; `sync` makes it durable.

        Raises ValueError when there are rows of another process, such as a holder taken for dead that came back.
        """
        length = self._path.stat().st_size if self._path.exists() else 0
        written = self._written
        if length != written.length:
            raise ValueError(f"{self._path} has {length} bytes, {written.length} are ours: another process wrote to it")
        return {"length": length, "sha256": written.digest.hexdigest()}

    def sync(self) -> None:
        """Makes every row durable, before a checkpoint that names their position. Any thread may call it."""
        with self._path.open("ab") as file:
            os.fsync(file.fileno())

    def cut_back(self, position: Position | None) -> None:
        """Cuts the file to a position that a checkpoint carries (None: to nothing).

        Raises ValueError when the content before the position has changed.
        """
        length = position["length"] if position else 0
        content = reading.read_bytes(self._path, None)[:length] if self._path.exists() else b""
        digest = hashlib.sha256(content)
        if position and digest.hexdigest() != position["sha256"]:
            raise ValueError(f"{self._path} was altered before byte {length}")
        if self._lock is not None:
            self._lock.check()
        with self._path.open("ab") as file:  # after a death on the way the next attempt cuts again
            file.truncate(length)
            os.fsync(file.fileno())
        self._written = _Written(length, digest)
