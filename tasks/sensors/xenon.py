"""The detector, and its events on disk: 4,760 light sensors on the faces of a box of xenon, with the numbers that the
experiment gives them.

The box stands in the place of a slice of a ring: u runs along its axis, v along the arc, w into the depth. The finer
centre of the outer face (6 x 5) takes the place of 4 x 3 sensors, so that the face has 24 x 9 + 18. The recorded code
reads the numbers of that face as rows of 24; those of its centre are neighbours only in rows of nine, as here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

import numpy as np

from tasks.stage.run import StageInput


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


SENSORS, INNER = 4760, 4092
HALF_U, HALF_V, DEPTH = 33.0, 70.0, 38.5
"""Half the width and half the length of the box, and its depth, in cm."""
LOWS, HIGHS = np.array([-HALF_U, -HALF_V, 0.0]), np.array([HALF_U, HALF_V, DEPTH])
SMALL, LARGE = 1.44, 16.6
"""Sensitive areas of the sensors of the inner face, and of the others, in cm^2."""
ROWS = (11, 12, 11, 12, 13, 14)
"""Sensors in the rows of a hexagonal face."""


@dataclass(frozen=True)
class Detector:
    """Its faces; of each sensor its place in cm and the normal of its face [S, 3], its area in cm^2 [S], and the
    numbers of its neighbours [S, K], filled up with S."""

    faces: dict[str, Face]
    places: np.ndarray
    normals: np.ndarray
    areas: np.ndarray
    near: np.ndarray


@cache
def detector() -> Detector:
    pairs, shares = hexagonal(ROWS)
    faces = {
        "inner": Face(np.arange(INNER).reshape(93, 44), (1, 0, 2), 0.0, 1.0, (3, 4)),
        "outer": Face(_outer(), (1, 0, 2), DEPTH, -1.0, (3, 5)),
        "upstream": Face(4308 + np.arange(144).reshape(24, 6), (1, 2, 0), -HALF_U, 1.0),
        "downstream": Face(4452 + np.arange(144).reshape(24, 6), (1, 2, 0), HALF_U, -1.0),
        "top": Face(4596 + np.arange(73), (2, 0, 1), HALF_V, -1.0, pairs=pairs, shares=shares),
        "bottom": Face(4669 + np.arange(73), (2, 0, 1), -HALF_V, 1.0, pairs=pairs, shares=shares),
    }
    places, normals = np.zeros((SENSORS, 3)), np.zeros((SENSORS, 3))
    for face in faces.values():
        sensors, middles = face.middles()
        for axis, middle in zip(face.axes, middles, strict=False):
            places[sensors, axis] = LOWS[axis] + middle * (HIGHS - LOWS)[axis]
        places[sensors, face.axes[2]], normals[sensors, face.axes[2]] = face.plane, face.normal
    areas = np.where(np.arange(SENSORS) < INNER, SMALL, LARGE)
    return Detector(faces, places, normals, areas, neighbours(faces.values(), SENSORS))


def _outer() -> np.ndarray:
    """24 x 9 sensors of 3 x 5 cells; in the centre, in the place of 4 x 3 of them, 6 x 5 of 2 x 3 cells: [72, 45].

    Of these 30 twelve have the numbers of the coarse sensors there, the others those from 4742 on.
    """
    coarse = INNER + np.arange(216).reshape(24, 9)
    centre = np.zeros((6, 5), dtype=np.int64)
    centre[np.ix_((0, 2, 3, 5), (0, 2, 4))] = coarse[10:14, 3:6]
    centre[centre == 0] = 4742 + np.arange(18)
    cells = coarse.repeat(3, 0).repeat(5, 1)
    cells[30:42, 15:30] = centre.repeat(2, 0).repeat(3, 1)
    return cells


FOLDER, SENTINEL, FOREIGN, TARGETS = "showers", -1.0, 1e10, 4
"""Where a stage publishes its events, the light of a sensor that is dead in one, the same as some files of the
experiment have it, and how much is to be found of one."""


@dataclass(frozen=True)
class Events:
    """Events of one split, on disk: light in photons, fp32 [N, S], and what is to be found, fp32 [N, 4]."""

    light: np.ndarray
    truth: np.ndarray

    @classmethod
    def open(cls, data: StageInput, split: str) -> Self:
        files = ((data.path / FOLDER / f"{split}.{kind}", of) for kind, of in (("light", SENSORS), ("truth", TARGETS)))
        return cls(*(np.memmap(file, np.float32, "r").reshape(-1, columns) for file, columns in files))

    def __len__(self) -> int:
        return len(self.light)
