"""The configuration of the stage over the cells of a sweep. Walking a page reads this, so it imports no numpy."""

from __future__ import annotations

from typing import Any, ClassVar

from tasks.stage.configuration import execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration


class SweepConfig(StageConfiguration):
    """sweep: the cells of a sweep side by side."""

    numerics: ClassVar = Numerics(torch=False)

    study: str = execution(description="Name of the study, as shown in the table.")
    keys: list[str] = scientific(description="What is varied.")
    cells: dict[str, list[Any]] = scientific(description="Name of each cell, and its value of each key.")
    missing: list[str] = scientific([], description="Names of the cells that stopped before they were finished.")
    causes: dict[str, str] = scientific(
        {}, added_later=True, description="Why each of these stopped: its stage, and how the stage ended."
    )
    numbers: list[str] = scientific(
        ["*"], description="Which numbers of a cell's last stage are shown: dotted names, where * stands for anything."
    )
    chance: list[str] = scientific(
        ["seed"], added_later=True, description="Keys that vary chance alone: means are taken over these."
    )
    confidence_level: float = scientific(0.95, gt=0, lt=1, description="Of the intervals over seeds.")

    @property
    def present(self) -> dict[str, list[Any]]:
        """The cells that are finished, with their values."""
        return {name: values for name, values in self.cells.items() if name not in self.missing}
