"""Scaling of inputs to a size that a network learns from: fitted once on train, kept as a file, applied in one place.

It is part of a result like a weight: every stage that shows data to a model reads it from the stage that made it, and
whoever loads the model gets it with it. Where each caller scales for itself, one path is forgotten, and its values go
in raw.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import torch
from pydantic import Field

from storage import durable
from storage.errors import BadInput
from tasks.data.statistics import Column
from tasks.stage.result import Result

FILE = "normaliser.json"


class Step(Result):
    """z = (x - offset) / scale of one column; with `logarithm_of_plus` a, of log10(x + a) in the place of x."""

    name: str
    offset: float
    scale: float = Field(gt=0)
    logarithm_of_plus: float | None = None


class Normaliser(Result):
    """One step for each column, in their order."""

    steps: list[Step]

    @classmethod
    def none(cls, names: Sequence[str]) -> Self:
        """Raw values, bit for bit."""
        return cls(steps=[Step(name=name, offset=0.0, scale=1.0) for name in names])

    @classmethod
    def measured(cls, columns: Sequence[Column]) -> Self:
        """Mean 0 and deviation 1, by the statistics of train. BadInput names a column for which there is none."""
        return cls(steps=[_measured(column) for column in columns])

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The one that `save` wrote. BadInput names a file that says something else."""
        return cls.read_file(folder / FILE)

    def save(self, folder: Path) -> None:
        durable.write_json(folder / FILE, self.model_dump(mode="json"))

    @property
    def digest(self) -> str:
        """sha256 of what it does: two that are equal here give the same inputs."""
        return durable.sha256_json(self.model_dump(mode="json"))

    def __call__(self, values: torch.Tensor) -> torch.Tensor:
        """The normalised values, fp32 [..., columns] as given. ValueError for another number of columns."""
        if values.shape[-1] != len(self.steps):
            names = ", ".join(step.name for step in self.steps)
            raise ValueError(f"the columns {names} are normalised, and these are {values.shape[-1]}")
        added = [step.logarithm_of_plus for step in self.steps]
        if any(value is not None for value in added):
            logarithms = (values + values.new_tensor([value or 0.0 for value in added])).log10()
            taken = torch.tensor([value is not None for value in added], device=values.device)
            values = torch.where(taken, logarithms, values)
        offsets, scales = zip(*((step.offset, step.scale) for step in self.steps), strict=True)
        return (values - values.new_tensor(offsets)) / values.new_tensor(scales)


def _measured(column: Column) -> Step:
    if column.mean is None or not column.deviation:
        raise BadInput(f"the column {column.name} has no spread to normalise by: leave it out of the inputs")
    return Step(name=column.name, offset=column.mean, scale=column.deviation)
