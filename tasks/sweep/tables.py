"""What a sweep's table and report say: each number of every cell, and over seeds its mean with an interval."""

from __future__ import annotations

import itertools
import re
from typing import Any

from tasks.report.figures import Dots, dots
from tasks.report.numbers import span
from tasks.report.page import Figure, Section
from tasks.report.provenance import run_name
from tasks.report.table import Table
from tasks.statistics.seeds import MeanOverSeeds
from tasks.sweep.results import SEED, CellNumbers, SweepResults

MISSING = "missing"
NUMBER = "{:.6g}".format


def title(results: SweepResults) -> str:
    return f"{results.study}: a sweep over {' and '.join(results.keys)}"


def lead(results: SweepResults) -> str:
    cells = f"{len(results.runs)} of {len(results.cells)} cells"
    return f"{cells}. Every cell is the same study with other values of what is varied."


def facts(results: SweepResults) -> list[str]:
    """What a reader must know before the numbers."""
    said = []
    if results.missing:
        said.append(f"Missing, because a stage of theirs stopped: {'; '.join(results.missing)}.")
    if SEED in results.keys:
        level = next((mean.confidence_level for over in results.over_seeds for mean in over.numbers.values()), None)
        intervals = f" with {level:.0%} intervals of Student's t" if level else ""
        said.append(f"Means are over the seeds that are there,{intervals}; one seed has none.")
    else:
        said.append("Each cell is one run with one seed: a difference may be chance.")
    alike = [
        f"{one} and {other}"
        for one, other in itertools.combinations(results.runs, 2)
        if results.cells[one].numbers == results.cells[other].numbers
    ]
    if alike:
        said.append(f"Equal in every number: {'; '.join(alike)}.")
    return said


def sections(results: SweepResults, pictures: dict[str, Figure]) -> list[Section]:
    """A section for each number that differs between the cells, and one for those that do not."""
    constant = results.equal_everywhere
    varied = [name for name in results.numbers if name not in constant]
    found = [
        Section(
            name,
            figures=[pictures[file_name(results, name)]],
            tables=[*_mean_table(results, name), _cell_table(results, name)],
        )
        for name in varied
    ]
    if constant:
        first = results.cells[next(iter(results.runs))]
        rows = [[name, NUMBER(first.numbers[name])] for name in constant]
        found.append(
            Section(
                "Equal in every cell",
                tables=[Table("Numbers that nothing varied here changes.", ["number", "value"], rows)],
            )
        )
    return found


def drawn(results: SweepResults) -> dict[str, Figure]:
    """File name -> figure, of each number that differs between the cells: one dot a cell, and the mean over seeds."""
    constant = results.equal_everywhere
    return {file_name(results, name): _figure(results, name) for name in results.numbers if name not in constant}


def file_name(results: SweepResults, number: str) -> str:
    """The name of a number's figure, which no other one has."""
    slug = re.sub(r"[^a-z0-9]+", "-", number.lower()).strip("-")
    return f"number-{results.numbers.index(number) + 1:02d}-{slug}"


def _mean_table(results: SweepResults, name: str) -> list[Table]:
    """A row for each combination of the other keys; none where no combination has two seeds."""
    if not any(name in over.numbers for over in results.over_seeds):
        return []
    rows = []
    for values, cells in results.groups():
        numbers, mean = _numbers(cells, name), _mean(results, values, name)
        if mean:
            told = [NUMBER(mean.mean), span(mean.interval, NUMBER), NUMBER(mean.standard_deviation), mean.seeds]
        else:
            told = [NUMBER(numbers[0]) if numbers else MISSING, "-", "-", len(numbers)]
        rows.append([*map(str, values), *told])
    header = [*results.other_keys, "mean", "interval", "standard deviation", "seeds"]
    return [Table(f"{name}: mean over seeds with its interval.", header, rows)]


def _cell_table(results: SweepResults, name: str) -> Table:
    rows = [[*map(str, cell.values), *_value_and_run(cell, name)] for cell in results.cells.values()]
    return Table(f"{name}: every cell.", [*results.keys, "value", "run"], rows)


def _value_and_run(cell: CellNumbers, name: str) -> list[str]:
    if cell.run is None:
        return [MISSING, "-"]
    return [NUMBER(cell.numbers[name]) if name in cell.numbers else "-", run_name(cell.run)]


def _figure(results: SweepResults, name: str) -> Figure:
    rows = []
    for values, cells in results.groups():
        lost = sum(cell.run is None for cell in cells)
        mean = _mean(results, values, name)
        label = (
            ", ".join(f"{key} {value}" for key, value in zip(results.other_keys, values, strict=True)) or "all seeds"
        )
        if lost:
            label += f" ({MISSING})" if lost == len(cells) else f" ({lost} {MISSING})"
        rows.append(Dots(label, _numbers(cells, name), *((mean.mean, mean.interval) if mean else ())))
    numbers = "; ".join(f"{row.label}: {', '.join(map(NUMBER, row.values)) or MISSING}" for row in rows)
    caption = f"{name}: one dot for each cell" + (
        ", and the mean over seeds with its interval." if any(row.mean is not None for row in rows) else "."
    )
    return Figure(dots(file_name(results, name), f"{caption} {numbers}.", rows, name), caption)


def _numbers(cells: list[CellNumbers], name: str) -> list[float]:
    return [cell.numbers[name] for cell in cells if name in cell.numbers]


def _mean(results: SweepResults, values: list[Any], name: str) -> MeanOverSeeds | None:
    return next((over.numbers.get(name) for over in results.over_seeds if over.values == values), None)
