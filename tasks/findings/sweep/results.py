"""The results of a sweep: the numbers of each cell by metric, and which differences the seeds show."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from pydantic import Field

from storage import durable
from storage.errors import BadInput
from tasks.findings.configuration import Metric, metrics_of
from tasks.findings.statistics.comparison import ArmMean, Comparison
from tasks.findings.sweep.configuration import SweepConfig, Swept
from tasks.stage.result import NOTED_BY_THE_FRAME, Result
from tasks.stage.run import StageInput

FINAL_RESULTS = "final_results.json"
Numbers = dict[str, dict[str, float]]
"""Title of a metric -> what a number of it is of -> the number."""


class CellNumbers(Result):
    """One cell: its value of each key, its run directory below the root of all runs, its numbers.

    One that is missing, because a stage of it stopped, has neither run nor numbers, but the cause.
    """

    values: list[Any]
    run: str | None
    numbers: Numbers
    cause: str = ""


class SweepResults(Result):
    """final_results.json of a sweep: every cell by its name, also those that are missing; what answers stands first."""

    study: str
    keys: list[str]
    chance: list[str] = Field(default_factory=lambda: ["seed"])
    """Keys that vary chance alone, over which means are taken."""
    cells: dict[str, CellNumbers]
    metrics: dict[str, Metric] = Field(default_factory=dict)
    """What is compared, as it was declared; other numbers are shown."""
    means: dict[str, dict[str, ArmMean]] = Field(default_factory=dict)
    comparisons: dict[str, list[Comparison]] = Field(default_factory=dict)
    """Title of a metric -> the differences of its arms, paired by seed, all corrected together."""

    @property
    def runs(self) -> dict[str, str]:
        """The run directory of each cell that is there."""
        return {name: cell.run for name, cell in self.cells.items() if cell.run is not None}

    @property
    def missing(self) -> list[str]:
        return [name for name, cell in self.cells.items() if cell.run is None]

    @property
    def labels(self) -> dict[str, list[str]]:
        """What the numbers of each metric are of; metrics before what is compared with nothing."""
        labels: dict[str, dict[str, None]] = {title: {} for title in self.metrics}
        for cell in self.cells.values():
            for title, numbers in cell.numbers.items():
                labels.setdefault(title, {}).update(dict.fromkeys(numbers))
        return {title: [*names] for title, names in labels.items()}

    def is_equal(self, title: str, label: str) -> bool:
        """True for a number that no key changes."""
        finished = [self.cells[name] for name in self.runs]
        return len(finished) > 1 and len({cell.numbers.get(title, {}).get(label) for cell in finished}) == 1

    def varied(self, title: str) -> list[str]:
        return [label for label in self.labels[title] if not self.is_equal(title, label)]

    @property
    def other_keys(self) -> list[str]:
        return [key for key in self.keys if key not in self.chance]

    @property
    def has_seeds(self) -> bool:
        """True where chance varies."""
        return len(self.other_keys) < len(self.keys)

    def seed_of(self, cell: CellNumbers) -> str:
        """The values of a cell that vary chance."""
        return ", ".join(str(value) for key, value in zip(self.keys, cell.values, strict=True) if key in self.chance)

    def groups(self) -> list[tuple[list[object], list[CellNumbers]]]:
        """The cells that differ in the seed only, with what they share: their values of the other keys."""
        groups: dict[str, tuple[list[object], list[CellNumbers]]] = {}
        for cell in self.cells.values():
            others = [value for key, value in zip(self.keys, cell.values, strict=True) if key not in self.chance]
            groups.setdefault(str(others), (others, []))[1].append(cell)
        return [*groups.values()]

    def arms(self, title: str) -> list[Arm]:
        """Each number of a metric for each combination of the other keys."""
        labels = self.labels[title]
        return [
            Arm(
                name=self.arm_name(label if len(labels) > 1 else "", values),
                label=label,
                at=values,
                by_seed={
                    self.seed_of(cell): cell.numbers[title][label]
                    for cell in cells
                    if label in cell.numbers.get(title, {})
                },
                missing=sum(cell.run is None for cell in cells),
                cells=len(cells),
            )
            for values, cells in self.groups()
            for label in labels
        ]

    def arm_name(self, label: str, values: Sequence[object]) -> str:
        """A label with the last part of each other key: the whole keys head the tables."""
        keys = [f"{key.rpartition('.')[2]} {value}" for key, value in zip(self.other_keys, values, strict=True)]
        return ", ".join(filter(None, [label, *keys])) or "all seeds"


@dataclass(frozen=True)
class Arm:
    """A number of the cells that differ in chance alone, `at` these values of the other keys, by seed."""

    name: str
    label: str
    at: list[object]
    by_seed: dict[str, float]
    missing: int
    cells: int


Number = tuple[str, str, float, Metric | None]
"""Title of its metric, what it is of, the number, and the metric that it is of; None: it is shown alone."""
UNDECLARED = Metric(higher=None)


def collect(config: SweepConfig, cells: dict[str, StageInput], runs: dict[str, str]) -> SweepResults:
    """The results of the finished `cells`; `runs` are their run directories. BadInput for a cell without numbers."""
    numbers: dict[str, Numbers] = {name: {} for name in config.cells}
    metrics: dict[str, Metric] = {}
    for name, stage in cells.items():
        for title, label, number, metric in numbers_of(stage, config.metrics):
            numbers[name].setdefault(title, {})[label] = number
            if metric is not None:
                metrics.setdefault(title, metric)
    declared = [title for title, metric in metrics.items() if metric != UNDECLARED]
    return SweepResults(
        study=config.study,
        keys=config.keys,
        chance=config.chance,
        cells={
            name: CellNumbers(
                values=values, run=runs.get(name), numbers=numbers[name], cause=config.causes.get(name, "")
            )
            for name, values in config.cells.items()
        },
        metrics={title: metrics[title] for title in dict.fromkeys([*declared, *metrics])},
    )


def numbers_of(stage: StageInput, declared: Sequence[Swept]) -> list[Number]:
    """The numbers of a stage's final_results.json, else of its result.json: those that are declared, else all.

    Raises BadInput where there is none.
    """
    file = stage.path / FINAL_RESULTS
    file = file if file.is_file() else stage.run.result_file
    read = durable.read_json(file)
    values = {key: read[key] for key in read if key not in NOTED_BY_THE_FRAME} if isinstance(read, dict) else {}
    every = _every(values, ()) if not declared else chain(*(_matching(each, values) for each in declared))
    numbers = [each for each in every if isinstance(each[2], int | float) and not isinstance(each[2], bool)]
    if not numbers:
        asked = f" ({', '.join(each.numbers for each in declared)})" if declared else ""
        raise BadInput(
            f"{stage.path}: {file.name} has no number that a sweep could show{asked}: return numbers from the stage "
            f"{stage.run.stage}, or write them to {FINAL_RESULTS}"
        )
    return numbers


def _matching(swept: Swept, values: Mapping[str, Any]) -> Iterator[Number]:
    """What stands where a metric says that its numbers are."""
    metric = swept.part(Metric) if swept.compared else None
    for words, value in _matches(values, swept.numbers.split("."), {}):
        yield swept.title.format(**words), words.get("arm", ""), value, metric


def _matches(values: object, parts: Sequence[str], words: dict[str, str]) -> Iterator[tuple[dict[str, str], Any]]:
    if not parts:
        yield words, values
    elif isinstance(values, dict):
        part, *rest = parts
        hole = re.fullmatch(r"\{(\w+)\}(.*)", part)
        for key, value in values.items():
            if hole and key.endswith(hole[2]):
                yield from _matches(value, rest, words | {hole[1]: key.removesuffix(hole[2])})
            elif key == part:
                yield from _matches(value, rest, words)


def _every(values: Mapping[str, Any], path: tuple[str, ...], compared: bool = True) -> Iterator[Number]:
    """Everything that stands there: what is declared by its metric, of what else stands beside that none is one, and
    where nothing is declared each group of numbers is one."""
    declared = metrics_of(values)
    for key, value in values.items():
        if metric := declared.get(key):
            of_arms = value if isinstance(value, dict) else {path[-1] if path else "": value}
            yield from ((".".join([*path[:-1], key]), arm, number, metric) for arm, number in of_arms.items())
        elif isinstance(value, dict):
            if key != "metrics" or not declared:
                yield from _every(value, (*path, key), compared and not declared)
        else:
            title, label = (".".join(path), key) if path else (key, "")
            yield title, label, value, UNDECLARED if compared and not declared else None
