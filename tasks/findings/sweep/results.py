"""The results of a sweep: the numbers of each cell by metric, and their means over seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
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
OF_A_TRAINING = {
    "budget",
    "guard",
    "steps",
    "epochs",
    "ended_early_at_step",
    "best_step",
    "trivial",
    "ratio_to_trivial",
}
"""What a training tells of itself beside its metrics (`tasks.training.result.described`)."""


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


class Judged(Result):
    """A metric by which the study itself judges, as its `r.report` or its trainings say."""

    numbers: dict[str, str]
    """Dotted name of each number, by what it is of."""
    higher: bool | None
    """Whether higher is better; None: nobody said."""
    pairs: list[list[str]] = Field(default_factory=list)
    """An arm and its reference, as the report compares them; none: each with the first."""


class SweepResults(Result):
    """final_results.json of a sweep: every cell by its name, also those that are missing."""

    study: str
    keys: list[str]
    chance: list[str] = Field(default_factory=lambda: ["seed"])
    """Keys that vary chance alone, over which means are taken."""
    cells: dict[str, CellNumbers]
    over_seeds: list[OverSeeds] = Field(default_factory=list)
    judged: dict[str, Judged] = Field(default_factory=dict)
    """The metrics by which the study itself judges, by their form; what decides stands first."""
    bookkeeping: list[str] = Field(default_factory=list)
    """Numbers of trainings that are no metric, such as steps: shown, and compared with nothing."""
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
    judged, bookkeeping = dict[str, Judged](), list[str]()
    if config.numbers == ["*"]:  # a study that names its numbers judges by these
        for stage in cells.values():
            _judge(_values_of(stage), judged, bookkeeping)
    results = SweepResults(
        study=config.study,
        keys=config.keys,
        chance=config.chance,
        cells=rows,
        judged=judged,
        bookkeeping=list(dict.fromkeys(bookkeeping)),
    )
    if not results.has_seeds:
        return results
    return results.model_copy(update={"over_seeds": _over_seeds(results, config.confidence_level)})


def numbers_of(stage: StageInput, patterns: list[str]) -> dict[str, float]:
    """Every scalar number of a stage's final_results.json, else of its result.json, by dotted name.

    Raises BadInput where there is none that one of the patterns names.
    """
    numbers = {
        name: number
        for name, number in _scalars(_values_of(stage)).items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    if not numbers:
        where = _file_of(stage).name
        raise BadInput(
            f"{stage.path}: {where} has no number that a sweep could show ({', '.join(patterns)}): return numbers from "
            f"the stage {stage.run.stage}, or write them to {FINAL_RESULTS}"
        )
    return numbers


def _file_of(stage: StageInput) -> Path:
    file = stage.path / FINAL_RESULTS
    return file if file.is_file() else stage.run.result_file


def _values_of(stage: StageInput) -> Any:
    values = durable.read_json(_file_of(stage))
    if not isinstance(values, dict):
        return values
    return {name: value for name, value in values.items() if name not in NOTED_BY_THE_FRAME}


def _judge(values: Any, judged: dict[str, Judged], bookkeeping: list[str], *path: str) -> None:
    """Adds what an `r.report` or the trainings in these values say of their numbers."""
    if not isinstance(values, dict):
        return
    if {"differences", "higher_is_better"} <= values.keys():  # as tasks.findings.side_by_side writes
        metric, arms = next(iter(values.items()))
        pairs = [[one["arm"], one["reference"]] for one in values["differences"]]
        numbers = {arm: f"{metric}.{arm}" for arm in arms}
        judged.setdefault(f"{metric}.NAME", Judged(numbers=numbers, higher=values["higher_is_better"], pairs=pairs))
    elif "best_step" in values and isinstance(values.get("higher", []), list):  # as tasks.training.result writes
        for key in values:
            name = ".".join([*path, key])
            if key in OF_A_TRAINING:
                bookkeeping += [name, *(f"{name}.{inner}" for inner in _scalars(values[key]))]
            elif key.startswith("best_"):
                form = ".".join([*path[:-1], *(["NAME"] if path else []), key])
                of_metric = Judged(numbers={}, higher=key.removeprefix("best_") in values.get("higher", ()))
                judged.setdefault(form, of_metric).numbers[path[-1] if path else key] = name
    else:
        for key, inner in values.items():
            _judge(inner, judged, bookkeeping, *path, str(key))


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
    higher: bool | None = None
    """Whether higher is better; None: nobody said."""
    pairs: Sequence[Sequence[str]] = ()
    """The labels that are compared; none: each with the first."""


def metrics_of(results: SweepResults, patterns: Sequence[str]) -> list[Metric]:
    """The metrics by which the study judges, and the numbers that one pattern names as one metric: what its last `*`
    stands for tells them apart.

    Other values of an earlier `*`, such as another attack, are another metric. Numbers that `*` alone names are one by
    the group that they are in.
    """
    by_form = {form: dict(one.numbers) for form, one in results.judged.items()}
    taken = {name for numbers in by_form.values() for name in numbers.values()}
    for name in results.numbers:
        if name not in taken:
            form, label = _form_and_label(name, patterns)
            by_form.setdefault(form, {})[label] = name
    nobody = Judged(numbers={}, higher=None)
    told = {form: results.judged.get(form, nobody) for form in by_form}
    titles = _titles([*by_form])
    return [Metric(titles[form], form, by_form[form], told[form].higher, told[form].pairs) for form in by_form]


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
