"""Sensors on the faces of a detector: grids, whose cells may be of several sizes, and graphs; which lie side by side.

Sensors have numbers from 0 on, in any order over the faces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Face:
    """A face in space. `axes` are those of its rows, of its columns and of its normal (0, 1, 2), `plane` is where it
    cuts the last of these, and `normal` the direction, 1 or -1.

    Of a grid `cells` [rows, columns] are the sensors in each cell, of which `patch` are read as one; a sensor may have
    several. Of a graph `cells` are its sensors [N], `pairs` its neighbours by their places among these [E, 2], each
    once, and `shares` how far along rows and columns each lies, from 0 to 1.
    """

    cells: np.ndarray
    axes: tuple[int, int, int]
    plane: float
    normal: float
    patch: tuple[int, int] = (1, 1)
    pairs: np.ndarray | None = None
    shares: Sequence[np.ndarray] = ()

    def touching(self) -> np.ndarray:
        """Pairs of sensors that are neighbours, each once [E, 2]; of a grid those whose cells touch, corners too."""
        if self.pairs is not None:
            return self.cells[self.pairs]
        cells = self.cells
        ways = [(cells[1:], cells[:-1]), (cells[:, 1:], cells[:, :-1])]
        ways += [(cells[1:, 1:], cells[:-1, :-1]), (cells[1:, :-1], cells[:-1, 1:])]
        pairs = np.concatenate([np.stack([one.ravel(), other.ravel()], 1) for one, other in ways])
        return np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]], axis=1), axis=0)

    def middles(self) -> tuple[np.ndarray, list[np.ndarray]]:
        """Its sensors, and how far along its rows and columns the middle of each lies, from 0 to 1."""
        shape = self.cells.shape
        shares = self.shares or [(of + 0.5) / size for of, size in zip(np.indices(shape), shape, strict=True)]
        sensors, which, counts = np.unique(self.cells, return_inverse=True, return_counts=True)
        return sensors, [np.bincount(which.ravel(), share.ravel()) / counts for share in shares]


def hexagonal(rows: Sequence[int]) -> tuple[np.ndarray, list[np.ndarray]]:
    """Pairs and shares of rows of so many sensors, centred above one another, each longer or shorter by one than the
    next: a sensor lies between two of a longer row."""
    sizes, starts = np.array(rows), np.cumsum(rows) - rows
    pairs = [(start + at, start + at + 1) for start, size in zip(starts, rows, strict=True) for at in range(size - 1)]
    for row in range(len(rows) - 1):
        short, long = sorted((row, row + 1), key=lambda one: rows[one])
        pairs += [(starts[short] + at, starts[long] + at + more) for at in range(rows[short]) for more in (0, 1)]
    columns = np.concatenate([np.arange(size) - (size - 1) / 2 for size in rows])
    return np.array(pairs), [(np.arange(len(rows)).repeat(sizes) + 0.5) / len(rows), 0.5 + columns / sizes.max()]


def neighbours(faces: Iterable[Face], sensors: int) -> np.ndarray:
    """The numbers of each sensor's neighbours on its face [S, K], filled up with S."""
    near: list[list[int]] = [[] for _ in range(sensors)]
    for one, other in np.concatenate([face.touching() for face in faces]).tolist():
        near[one].append(other)
        near[other].append(one)
    longest = max(map(len, near))
    return np.array([sorted(of) + [sensors] * (longest - len(of)) for of in near])
