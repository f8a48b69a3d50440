"""Metric and timing rows, kept as JSON lines.

A metrics file must be a function of configuration and data, also after kills: each checkpoint carries its length
and digest, and a continuation cuts it back to there.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from storage import durable, reading
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
        present = reading.read_bytes(self._path, None) if self._path.exists() else b""
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
        kept = reading.read_bytes(self._path, None)[:length] if self._path.exists() else b""
        digest = hashlib.sha256(kept)
        if position and digest.hexdigest() != position["sha256"]:
            raise ValueError(f"{self._path} was altered before byte {length}")
        if self._lock is not None:
            self._lock.check()
        with self._path.open("ab") as file:  # a death on the way leaves what the next attempt cuts back again
            file.truncate(length)
            os.fsync(file.fileno())
        self._ours = _Ours(length, digest)
