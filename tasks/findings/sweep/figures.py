"""The figures of a sweep: every cell of a number, over the values of a key where these are numbers."""

from __future__ import annotations

import re
from typing import Any

from tasks.findings.arms import answer_figure
from tasks.findings.document import Figure
from tasks.findings.figures import SERIES_STYLES, Dots, dots, over_values
from tasks.findings.statistics.seeds import MeanOverSeeds
from tasks.findings.sweep.arms import label_values
from tasks.findings.sweep.results import CellNumbers, Metric, SweepResults

MISSING = "missing"
NUMBER = "{:.6g}".format
FEWEST_VALUES = 3
"""A key with fewer numbers than these has no axis of its own."""


def figures_of(results: SweepResults, metric: Metric) -> list[Figure]:
    """All arms of a metric on one axis; over a key of numbers, a figure of each number that differs between cells."""
    varied = {label: name for label, name in metric.numbers.items() if name not in results.equal_everywhere}
    axis = _axis(results)
    if axis is not None:
        return [_over(results, metric, label, axis) for label in varied]
    rows = [
        _dots(results, values, cells, name, label if len(metric.numbers) > 1 else "")
        for values, cells in results.groups()
        for label, name in varied.items()
    ]
    caption, listing = _caption(metric.title, rows), _listing(rows)
    return [dots(file_name(results, next(iter(varied.values()))), caption, listing, rows, metric.title)]


def answer(results: SweepResults, title: str) -> Figure | None:
    """The differences of the arms of the metric that answers; None where nothing was compared."""
    if not (comparisons := results.comparisons.get(title)):
        return None
    caption = (
        f"{title}: the mean of each arm less that of another, seed by seed. Each interval is of this difference alone."
    )
    return answer_figure({title: comparisons}, caption, f"difference in {title}")


def file_name(results: SweepResults, number: str) -> str:
    """The name of a number's figure, which no other one has."""
    slug = re.sub(r"[^a-z0-9]+", "-", number.lower()).strip("-")
    return f"number-{results.numbers.index(number) + 1:02d}-{slug}"


def numbers_of_cells(cells: list[CellNumbers], name: str) -> list[float]:
    return [cell.numbers[name] for cell in cells if name in cell.numbers]


def mean_of(results: SweepResults, values: list[Any], name: str) -> MeanOverSeeds | None:
    """The mean over seeds where the other keys have these values; None where fewer than two are there."""
    return next((over.numbers.get(name) for over in results.over_seeds if over.values == values), None)


def _over(results: SweepResults, metric: Metric, label: str, axis: str) -> Figure:
    name = metric.numbers[label]
    groups = [(values, cells, _dots(results, values, cells, name)) for values, cells in results.groups()]
    rows = [row for _, _, row in groups]
    caption = _caption(name if label == name else f"{label}: {metric.title}", rows)
    place = results.other_keys.index(axis)
    series: dict[str, list[tuple[float, Dots]]] = {}
    lost: dict[float, int] = {}
    for values, cells, row in groups:
        others = [key for key in results.other_keys if key != axis]
        rest = label_values(
            others, [value for key, value in zip(results.other_keys, values, strict=True) if key != axis]
        )
        series.setdefault(rest, []).append((values[place], row))
        lost[values[place]] = lost.get(values[place], 0) + sum(cell.run is None for cell in cells)
    for of_series in series.values():
        of_series.sort(key=lambda row: row[0])  # a line from left to right, however the values were given
    ticks = {value: f"{value}\n{count} {MISSING}" if count else str(value) for value, count in sorted(lost.items())}
    return over_values(
        file_name(results, name), f"{caption} Over {axis}.", _listing(rows), series, ticks, axis, metric.title
    )


def _caption(title: str, rows: list[Dots]) -> str:
    intervals = ", with its interval" if any(row.interval is not None for row in rows) else ""
    means = f"; filled: the mean over seeds{intervals}" if any(row.mean is not None for row in rows) else ""
    return f"{title}. Open dot: one cell{means}."


def _listing(rows: list[Dots]) -> str:
    return "; ".join(f"{row.label}: {', '.join(map(NUMBER, row.values)) or MISSING}" for row in rows)


def _dots(results: SweepResults, values: list[Any], cells: list[CellNumbers], name: str, label: str = "") -> Dots:
    label = ", ".join(filter(None, [label, label_values(results.other_keys, values)])) or "all seeds"
    if lost := sum(cell.run is None for cell in cells):
        label += f" ({MISSING})" if lost == len(cells) else f" ({lost} {MISSING})"
    mean = mean_of(results, values, name)
    interval = mean.interval if mean and mean.standard_deviation > 0 else None  # one without width is no interval
    return Dots(label, numbers_of_cells(cells, name), mean.mean if mean else None, interval)


def _axis(results: SweepResults) -> str | None:
    """The key whose values are the x axis: one of numbers, where all other combinations can be told apart as lines."""
    combinations = len(results.groups())
    for key in results.other_keys:
        values = {cell.values[results.keys.index(key)] for cell in results.cells.values()}
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        if numbers and len(values) >= FEWEST_VALUES and combinations <= len(values) * len(SERIES_STYLES):
            return key
    return None
