"""The figures of a sweep: every cell of a number, over the values of a key where these are numbers."""

import re
from collections.abc import Sequence

from tasks.findings.document import Figure
from tasks.findings.figures import SERIES_STYLES, Dots, dots, over_values
from tasks.findings.sweep.results import Arm, SweepResults

MISSING = "missing"
NUMBER = "{:.6g}".format
FEWEST_VALUES = 3
"""A key with fewer numbers than these has no axis of its own."""


def figures_of(results: SweepResults, title: str) -> list[Figure]:
    """All arms of a metric on one axis; over a key of numbers, a figure of each number that differs between cells."""
    varied, axis = results.varied(title), _axis(results)
    arms = [arm for arm in results.arms(title) if arm.label in varied]
    if axis is not None:
        return [_over(results, title, label, [arm for arm in arms if arm.label == label], axis) for label in varied]
    rows = [_dots(results, title, arm, arm.name) for arm in arms]
    return [dots(_file_name(results, title, varied[0]), _caption(title, rows), _listing(rows), rows, title)]


def _file_name(results: SweepResults, title: str, label: str) -> str:
    """The name of a number's figure, which no other one has."""
    numbers = [(title, label) for title, labels in results.labels.items() for label in labels]
    slug = re.sub(r"[^a-z0-9]+", "-", f"{title} {label}".lower()).strip("-")
    return f"number-{numbers.index((title, label)) + 1:02d}-{slug}"


def _over(results: SweepResults, title: str, label: str, arms: Sequence[Arm], axis: str) -> Figure:
    place = results.other_keys.index(axis)
    rows = [_dots(results, title, arm, results.arm_name("", arm.at)) for arm in arms]
    series: dict[str, list[tuple[float, Dots]]] = {}
    lost: dict[float, int] = {}
    for arm, row in zip(arms, rows, strict=True):
        line = {
            f"{key.rpartition('.')[2]} {value}"
            for key, value in zip(results.other_keys, arm.at, strict=True)
            if key != axis
        }
        series.setdefault(", ".join(sorted(line)), []).append((arm.at[place], row))
        lost[arm.at[place]] = lost.get(arm.at[place], 0) + arm.missing
    for of_series in series.values():
        of_series.sort(key=lambda row: row[0])  # a line from left to right, however the values were given
    ticks = {value: f"{value}\n{count} {MISSING}" if count else str(value) for value, count in sorted(lost.items())}
    caption = f"{_caption(f'{label}: {title}' if label else title, rows)} Over {axis}."
    return over_values(_file_name(results, title, label), caption, _listing(rows), series, ticks, axis, title)


def _caption(title: str, rows: list[Dots]) -> str:
    intervals = ", with its interval" if any(row.interval is not None for row in rows) else ""
    means = f"; filled: the mean over seeds{intervals}" if any(row.mean is not None for row in rows) else ""
    return f"{title}. Open dot: one cell{means}."


def _listing(rows: list[Dots]) -> str:
    return "; ".join(f"{row.label}: {', '.join(map(NUMBER, row.values)) or MISSING}" for row in rows)


def _dots(results: SweepResults, title: str, arm: Arm, label: str) -> Dots:
    if arm.missing:
        label += f" ({MISSING})" if arm.missing == arm.cells else f" ({arm.missing} {MISSING})"
    mean = results.means.get(title, {}).get(arm.name)
    several = mean is not None and mean.standard_deviation is not None
    interval = mean.interval if mean and mean.standard_deviation else None  # one without width is no interval
    return Dots(label, [*arm.by_seed.values()], mean.mean if mean and several else None, interval)


def _axis(results: SweepResults) -> str | None:
    """The key whose values are the x axis: one of numbers, where all other combinations can be told apart as lines."""
    combinations = len(results.groups())
    for key in results.other_keys:
        values = {
            str(value): value for cell in results.cells.values() for value in [cell.values[results.keys.index(key)]]
        }
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.values())
        if numbers and len(values) >= FEWEST_VALUES and combinations <= len(values) * len(SERIES_STYLES):
            return key
    return None
