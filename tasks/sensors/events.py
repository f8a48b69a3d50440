"""Events of a detector on disk."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from tasks.sensors.xenon import SENSORS
from tasks.stage.run import StageInput

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
