"""The figures of a sweep: every cell of a number, over the values of a key where these are numbers."""

from __future__ import annotations

import re
from typing import Any

from tasks.report.figures import SERIES_STYLES, Dots, dots, over_values
from tasks.report.page import Figure
from tasks.statistics.seeds import MeanOverSeeds
from tasks.sweep.metrics import Metric
from tasks.sweep.results import CellNumbers, SweepResults

MISSING = "missing"
NUMBER = "{:.6g}".format
FEWEST_VALUES = 3
"""A key with fewer numbers than these has no axis of its own."""


def drawn(results: SweepResults, metrics: list[Metric]) -> dict[str, Figure]:
    """File name -> figure, of each number that differs between the cells."""
    constant = results.equal_everywhere
    return {
        file_name(results, name): _figure(results, metric, label)
        for metric in metrics
        for label, name in metric.numbers.items()
        if name not in constant
    }


def file_name(results: SweepResults, number: str) -> str:
    """The name of a number's figure, which no other one has."""
    slug = re.sub(r"[^a-z0-9]+", "-", number.lower()).strip("-")
    return f"number-{results.numbers.index(number) + 1:02d}-{slug}"


def numbers_of_cells(cells: list[CellNumbers], name: str) -> list[float]:
    return [cell.numbers[name] for cell in cells if name in cell.numbers]


def mean_of(results: SweepResults, values: list[Any], name: str) -> MeanOverSeeds | None:
    """The mean over seeds where the other keys have these values; None where fewer than two are there."""
    return next((over.numbers.get(name) for over in results.over_seeds if over.values == values), None)


def _figure(results: SweepResults, metric: Metric, label: str) -> Figure:
    name = metric.numbers[label]
    groups = [(values, cells, _dots(results, values, cells, name)) for values, cells in results.groups()]
    means = any(row.mean is not None for _, _, row in groups)
    intervals = any(row.interval is not None for _, _, row in groups)
    caption = name if label == name else f"{label}: {metric.title}"
    caption += ". Open dot: one cell"
    caption += "; filled: the mean over seeds" + (", with its interval" if intervals else "") if means else ""
    shown = "; ".join(f"{row.label}: {', '.join(map(NUMBER, row.values)) or MISSING}" for _, _, row in groups)
    file, axis = file_name(results, name), _axis(results)
    if axis is None:
        return Figure(dots(file, f"{caption}. {shown}.", [row for _, _, row in groups], metric.title), f"{caption}.")
    place = results.other_keys.index(axis)
    series: dict[str, list[tuple[float, Dots]]] = {}
    lost: dict[float, int] = {}
    for values, cells, row in groups:
        rest = [(key, value) for key, value in zip(results.other_keys, values, strict=True) if key != axis]
        series.setdefault(_named(rest), []).append((values[place], row))
        lost[values[place]] = lost.get(values[place], 0) + sum(cell.run is None for cell in cells)
    for rows in series.values():
        rows.sort(key=lambda row: row[0])  # a line from left to right, however the values were given
    ticks = {value: f"{value}\n{count} {MISSING}" if count else str(value) for value, count in sorted(lost.items())}
    svg = over_values(file, f"{caption}, over {axis}. {shown}.", series, ticks, axis, metric.title)
    return Figure(svg, f"{caption}; over {axis}.")


def _dots(results: SweepResults, values: list[Any], cells: list[CellNumbers], name: str) -> Dots:
    label = _named(list(zip(results.other_keys, values, strict=True))) or "all seeds"
    if lost := sum(cell.run is None for cell in cells):
        label += f" ({MISSING})" if lost == len(cells) else f" ({lost} {MISSING})"
    mean = mean_of(results, values, name)
    interval = mean.interval if mean and mean.standard_deviation > 0 else None  # one without width is no interval
    return Dots(label, numbers_of_cells(cells, name), mean.mean if mean else None, interval)


def _named(values: list[tuple[str, Any]]) -> str:
    """Values with the last part of their keys: the whole keys head the tables."""
    return ", ".join(f"{key.rpartition('.')[2]} {value}" for key, value in values)


def _axis(results: SweepResults) -> str | None:
    """The key whose values are the x axis: one of numbers, where all other combinations can be told apart as lines."""
    combinations = len(results.groups())
    for key in results.other_keys:
        values = {cell.values[results.keys.index(key)] for cell in results.cells.values()}
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if numbers and len(values) >= FEWEST_VALUES and combinations <= len(values) * len(SERIES_STYLES):
            return key
    return None
