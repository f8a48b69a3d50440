"""The configuration of the stage over the cells of a sweep. Walking a page reads this, so it imports no numpy."""

from typing import Any, ClassVar

from tasks.findings.configuration import Metric
from tasks.stage.configuration import execution, scientific
from tasks.stage.numerics import Numerics
from tasks.stage.study import StageConfiguration


class Swept(Metric):
    """A metric of a study's final results, as its page declares it for a sweep."""

    title: str = scientific(description="What it is called; words in braces stand for those of `numbers`.")
    numbers: str = scientific(
        description="Where its numbers are, such as `loss.{arm}.value`: a word in braces stands for any key, {arm} for "
        "those that are compared with each other."
    )
    compared: bool = scientific(True, description="False: the numbers are shown alone.")


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
    metrics: list[Swept] = scientific([], description="What is shown; none: every number of a cell's last stage.")
    chance: list[str] = scientific(
        ["seed"], added_later=True, description="Keys that vary chance alone: means are taken over these."
    )
    confidence_level: float = scientific(0.95, gt=0, lt=1, description="Of the intervals over seeds.")

    @property
    def present(self) -> dict[str, list[Any]]:
        """The cells that are finished, with their values."""
        return {name: values for name, values in self.cells.items() if name not in self.missing}
