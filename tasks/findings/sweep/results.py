"""The results of a sweep: the numbers of each cell by metric, and their means over seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from storage import durable
from storage.errors import BadInput
from tasks.findings.statistics.comparison import Comparison
from tasks.findings.statistics.seeds import MeanOverSeeds, mean_over_seeds
from tasks.findings.sweep.configuration import SweepConfig
from tasks.stage.result import NOTED_BY_THE_FRAME, Result
from tasks.stage.run import StageInput

FINAL_RESULTS = "final_results.json"


class CellNumbers(Result):
    """One cell: its value of each key, its run directory below the root of all runs, its numbers by dotted name.

    One that is missing, because a stage of it stopped, has neither run nor numbers, but the cause.
    """

    values: list[Any]
    run: str | None
    numbers: dict[str, float]
    cause: str = ""


class OverSeeds(Result):
    """The cells that differ in the seed only: the values of the other keys, and the mean of each number."""

    values: list[Any]
    numbers: dict[str, MeanOverSeeds]


class SweepResults(Result):
    """final_results.json of a sweep: every cell by its name, also those that are missing."""

    study: str
    keys: list[str]
    chance: list[str] = Field(default_factory=lambda: ["seed"])
    """Keys that vary chance alone, over which means are taken."""
    cells: dict[str, CellNumbers]
    over_seeds: list[OverSeeds] = Field(default_factory=list)
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
    def numbers(self) -> list[str]:
        """Names of all numbers, in the order of the cells' results."""
        return list(dict.fromkeys(name for cell in self.cells.values() for name in cell.numbers))

    @property
    def equal_everywhere(self) -> list[str]:
        """The numbers that no key changes."""
        finished = [self.cells[name] for name in self.runs]
        values = {name: {cell.numbers.get(name) for cell in finished} for name in self.numbers}
        return [name for name, of_cells in values.items() if len(of_cells) == 1 and len(finished) > 1]

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

    def groups(self) -> list[tuple[list[Any], list[CellNumbers]]]:
        """The cells that differ in the seed only, with what they share: their values of the other keys."""
        groups: list[tuple[list[Any], list[CellNumbers]]] = []
        for cell in self.cells.values():
            others = [value for key, value in zip(self.keys, cell.values, strict=True) if key not in self.chance]
            group = next((cells for values, cells in groups if values == others), None)
            if group is None:
                groups.append((others, group := []))
            group.append(cell)
        return groups


def collect(config: SweepConfig, cells: dict[str, StageInput], runs: dict[str, str]) -> SweepResults:
    """The results of the finished `cells`; `runs` are their run directories. BadInput for a cell without numbers."""
    numbers = {name: numbers_of(stage, config.numbers) for name, stage in cells.items()}
    rows = {
        name: CellNumbers(
            values=values, run=runs.get(name), numbers=numbers.get(name, {}), cause=config.causes.get(name, "")
        )
        for name, values in config.cells.items()
    }
    results = SweepResults(study=config.study, keys=config.keys, chance=config.chance, cells=rows)
    if not results.has_seeds:
        return results
    return results.model_copy(update={"over_seeds": _over_seeds(results, config.confidence_level)})


def numbers_of(stage: StageInput, patterns: list[str]) -> dict[str, float]:
    """Every scalar number of a stage's final_results.json, else of its result.json, by dotted name.

    Raises BadInput where there is none that one of the patterns names.
    """
    file = stage.path / FINAL_RESULTS
    values = durable.read_json(file if file.is_file() else stage.run.result_file)
    if isinstance(values, dict):
        values = {name: value for name, value in values.items() if name not in NOTED_BY_THE_FRAME}
    numbers = {
        name: number
        for name, number in _scalars(values).items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not numbers:
        where = file.name if file.is_file() else stage.run.result_file.name
        raise BadInput(
            f"{stage.path}: {where} has no number that a sweep could show ({', '.join(patterns)}): return numbers from "
            f"the stage {stage.run.stage}, or write them to {FINAL_RESULTS}"
        )
    return numbers


def _over_seeds(results: SweepResults, level: float) -> list[OverSeeds]:
    """Means of what two or more seeds gave; the seeds that are missing are left out."""
    return [
        OverSeeds(
            values=others,
            numbers={
                name: mean_over_seeds(values, level)
                for name in results.numbers
                if len(values := [cell.numbers[name] for cell in cells if name in cell.numbers]) > 1
            },
        )
        for others, cells in results.groups()
    ]


def _scalars(values: Any, name: str = "") -> dict[str, float]:
    if isinstance(values, dict):
        named = [_scalars(value, f"{name}.{key}" if name else str(key)) for key, value in values.items()]
        return {inner: number for numbers in named for inner, number in numbers.items()}
    return {name: float(values)} if isinstance(values, int | float) and not isinstance(values, bool) else {}


@dataclass(frozen=True)
class Metric:
    """Numbers that are compared with each other."""

    title: str
    form: str
    """The pattern of their dotted names, in which NAME stands for the label."""
    numbers: dict[str, str]
    """Dotted name of each number, by its label."""


def metrics_of(results: SweepResults, patterns: Sequence[str]) -> list[Metric]:
    """The numbers that one pattern names, as one metric: what its last `*` stands for tells them apart.

    Other values of an earlier `*`, such as another attack, are another metric. Numbers that `*` alone names are one by
    the group that they are in.
    """
    by_form: dict[str, dict[str, str]] = {}
    for name in results.numbers:
        form, label = _form_and_label(name, patterns)
        by_form.setdefault(form, {})[label] = name
    return [Metric(title, form, by_form[form]) for form, title in _titles([*by_form]).items()]


def _titles(forms: Sequence[str]) -> dict[str, str]:
    """Title of each form: the common part of its numbers' names, behind the words that tell it from another's."""
    titles = {}
    for form in forms:
        alike = [set(other.split(".")) for other in forms if _title(other) == _title(form)]
        words = [word for word in form.split(".") if not all(word in other for other in alike)]
        titles[form] = ", ".join([*words, _title(form)])
    return titles if len({*titles.values()}) == len(forms) else dict(zip(forms, forms, strict=True))


def _form_and_label(name: str, patterns: Sequence[str]) -> tuple[str, str]:
    pattern = next(pattern for pattern in patterns if fnmatchcase(name, pattern))
    stands = re.fullmatch("(.*)".join(map(re.escape, pattern.split("*"))), name)
    if pattern != "*" and stands and stands.groups():
        start, end = stands.span(stands.lastindex or 1)
        return f"{name[:start]}NAME{name[end:]}", name[start:end]
    *group, label = re.split(r"(?<!\d)\.|\.(?!\d)", name)  # the point of "dropout 0.2" parts no names
    return (".".join([*group, "NAME"]), label) if group else (name, name)


def _title(form: str) -> str:
    """The common part of the numbers' names: the end, else the beginning."""
    parts = [part.strip(".") for part in form.split("NAME")]
    return parts[-1] or parts[0]
