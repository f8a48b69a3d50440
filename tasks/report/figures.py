"""Figures as SVG: text stays text, colours are CSS variables with a fallback, and equal data give equal bytes.

One SVG stands alone (as a file, in the Prefect UI) with the fallback colours, and inline in a page takes the
colours of the page, light or dark. Series differ by line style and marker as well as by colour.
"""

from __future__ import annotations

import html
import io
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "ink": ("#010203", "#222222"),
    "faint": ("#010204", "#6b6b6b"),
    "grid": ("#010205", "#dddddd"),
    "paper": ("#010206", "#ffffff"),
    "series-1": ("#010207", "#6b6b6b"),
    "series-2": ("#010208", "#0067a8"),
    "series-3": ("#010209", "#b84a00"),
}
"""CSS variable -> (the colour that stands for it while matplotlib draws, the fallback).

Blue and vermilion differ for every common kind of colour blindness, and all reach 4.5:1 on their paper.
"""

INK, FAINT, GRID, PAPER = (COLOURS[name][0] for name in ("ink", "faint", "grid", "paper"))
WIDTH_INCHES = 4.0
FONT_POINTS = 9.0


@dataclass(frozen=True)
class SeriesStyle:
    """How one series is drawn: line and marker differ too, for whoever sees no colour."""

    colour: str
    line: Any
    marker: str


SERIES_STYLES = (
    SeriesStyle(COLOURS["series-1"][0], (0, (1, 1.5)), "^"),
    SeriesStyle(COLOURS["series-2"][0], "-", "o"),
    SeriesStyle(COLOURS["series-3"][0], (0, (5, 2)), "s"),
)

_LINES = (*SERIES_STYLES[1:], SERIES_STYLES[0])
LABEL_HEIGHT = 0.05
"""Of the name of a point, as a share of the height of what is drawn."""
LOGARITHMIC_FROM = 8
"""An x axis is logarithmic where its largest value is at least so many times its smallest."""


@dataclass(frozen=True)
class Curve:
    """Points [x, y] of one series; `dots` marks each point, else a thin line joins them."""

    name: str
    style: SeriesStyle
    points: Sequence[Sequence[float]]
    dots: bool = False


@dataclass(frozen=True)
class Panel:
    """One set of axes: the samples of each series."""

    title: str
    samples: dict[str, Sequence[float]]


def curves(name: str, described: str, drawn: Sequence[Curve], x_label: str, y_label: str) -> str:
    """Lines over a common x axis, with a legend below. Returns the SVG."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for curve in drawn:
            x, y = zip(*curve.points, strict=True)
            marker = {"marker": curve.style.marker, "markersize": 4} if curve.dots else {"alpha": 0.55}
            width = 1.6 if curve.dots else 1.0
            axes.plot(
                x, y, label=curve.name, color=curve.style.colour, linestyle=curve.style.line, linewidth=width, **marker
            )
        _label(axes, x_label, y_label)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)

    return _svg(name, described, 3.5, draw)


def distributions(
    name: str, described: str, panels: Sequence[Panel], styles: dict[str, SeriesStyle], x_label: str
) -> str:
    """Empirical distribution functions, one panel below another on one x axis: every sample is a step."""

    def draw(figure: Figure) -> None:
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, panel in zip(grid, panels, strict=True):
            for series, values in panel.samples.items():
                style = styles[series]
                axes.ecdf(values, label=series, color=style.colour, linestyle=style.line, linewidth=1.6)
            axes.axvline(0, color=FAINT, linewidth=0.8)
            axes.set_title(panel.title, loc="left", fontsize=FONT_POINTS, color=INK)
            _label(axes, "", "share of texts")
            axes.set_ylim(-0.03, 1.03)
        grid[-1].set_xlabel(x_label)
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)

    return _svg(name, described, 1.3 + 1.6 * len(panels), draw)


def levels(
    name: str, described: str, rows: dict[str, dict[str, float]], styles: dict[str, SeriesStyle], x_label: str
) -> str:
    """One line for each row with a marker for each of its values: how far the values of a row lie apart."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, values in enumerate(rows.values()):
            axes.hlines(place, min(values.values()), max(values.values()), color=GRID, linewidth=3, zorder=1)
            for series, value in values.items():
                style = styles[series]
                axes.plot(
                    value,
                    place,
                    style.marker,
                    color=style.colour,
                    markersize=7,
                    zorder=2,
                    label=series if not place else None,
                )
        _rows(axes, list(rows), x_label)
        kinds = len(next(iter(rows.values())))
        figure.legend(loc="outside lower center", ncols=kinds if kinds < 4 else 2, frameon=False)

    return _svg(name, described, 1.2 + 0.36 * len(rows), draw)


def intervals(
    name: str, described: str, rows: Sequence[tuple[str, float, Sequence[float] | None]], x_label: str
) -> str:
    """One estimate with its interval in each row, beside the line of no difference; a row may have no interval."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.axvline(0, color=FAINT, linewidth=0.8)
        for place, (_, value, bounds) in enumerate(rows):
            if bounds is not None:
                axes.hlines(place, *bounds, color=INK, linewidth=1.6)
                axes.plot(bounds, [place, place], "|", color=INK, markersize=7)
            axes.plot(value, place, "D", color=INK, markersize=5)
        _rows(axes, [label for label, _, _ in rows], x_label)

    return _svg(name, described, 0.8 + 0.3 * len(rows), draw)


@dataclass(frozen=True)
class Dots:
    """One row of `dots`: its single values, and their mean with its interval where there is one."""

    label: str
    values: Sequence[float]
    mean: float | None = None
    interval: Sequence[float] | None = None


def dots(name: str, described: str, rows: Sequence[Dots], x_label: str) -> str:
    """Every single value of a row as an open dot and their mean with its interval above them; a row may have none."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, row in enumerate(rows):
            below = place + 0.14 if row.mean is not None else place
            axes.plot(row.values, [below] * len(row.values), "o", color=SERIES_STYLES[1].colour, fillstyle="none")
            if row.mean is not None:
                axes.plot(row.mean, place - 0.14, "D", color=INK, markersize=5)
            if row.interval is not None:
                axes.hlines(place - 0.14, *row.interval, color=INK, linewidth=1.6)
                axes.plot(row.interval, [place - 0.14] * 2, "|", color=INK, markersize=7)
        _rows(axes, [row.label for row in rows], x_label)

    return _svg(name, described, 0.8 + 0.36 * len(rows), draw)


def over_values(
    name: str,
    described: str,
    series: Mapping[str, Sequence[tuple[float, Dots]]],
    ticks: Mapping[float, str],
    x_label: str,
    y_label: str,
) -> str:
    """Rows of `dots` over the numbers of `ticks`: of each series the single values, and a line through the means.

    Where a row has no mean the line goes through its values, and where it has none the line has a gap.
    """

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        _label(axes, x_label, y_label)
        for style, (label, rows) in zip(_LINES, series.items(), strict=False):
            middle = [row.mean if row.mean is not None else next(iter(row.values), math.nan) for _, row in rows]
            axes.plot(
                [x for x, _ in rows], middle, label=label, color=style.colour, linestyle=style.line, linewidth=1.2
            )
            for (x, row), mean in zip(rows, middle, strict=True):
                axes.plot([x] * len(row.values), row.values, style.marker, color=style.colour, fillstyle="none")
                if row.mean is not None:
                    axes.plot(x, mean, style.marker, color=style.colour, markersize=4)
                if row.interval is not None:
                    axes.vlines(x, *row.interval, color=style.colour, linewidth=1.6)
        if min(ticks) > 0 and max(ticks) / min(ticks) >= LOGARITHMIC_FROM:
            axes.set_xscale("log")
        axes.set_xticks(list(ticks), list(ticks.values()))
        axes.minorticks_off()
        axes.ticklabel_format(axis="y", useOffset=False)
        if len(series) > 1:
            figure.legend(loc="outside lower center", ncols=len(series), frameon=False)

    return _svg(name, described, 2.9, draw)


def against(
    name: str,
    described: str,
    line: Sequence[tuple[str, float, float]],
    points: Sequence[tuple[str, float, float]],
    x_label: str,
    y_label: str,
) -> str:
    """Named points (label, x, y) of one series, joined in the order of x, and single points beside them."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        joined = sorted(line, key=lambda point: point[1])
        style = SERIES_STYLES[1]
        axes.plot([x for _, x, _ in joined], [y for *_, y in joined], "-o", color=style.colour, markersize=4)
        axes.plot([x for _, x, _ in points], [y for *_, y in points], "s", color=SERIES_STYLES[2].colour, markersize=6)
        named = sorted([*joined, *points], key=lambda point: point[2])
        gap = LABEL_HEIGHT * (named[-1][2] - named[0][2])
        place = -math.inf
        for label, x, y in named:
            place = max(y, place + gap)  # names of points that lie close stand above one another
            axes.annotate(
                label, (x, place), xytext=(6, -3), textcoords="offset points", fontsize=FONT_POINTS - 2, color=INK
            )
        _label(axes, x_label, y_label)
        axes.margins(x=0.25, y=0.15)  # room for the names

    return _svg(name, described, 3.3, draw)


def prepare(cache: Path) -> None:
    """Lets matplotlib keep its list of fonts in `cache`: never in the home folder. Call before the first figure."""
    os.environ.setdefault("MPLCONFIGDIR", str(cache / "matplotlib"))


def _rows(axes: Axes, labels: list[str], x_label: str) -> None:
    _label(axes, "", "")
    axes.set_xlabel(x_label, loc="right")  # beside long row labels the middle of the axes is not that of the figure
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.08)


def _label(axes: Axes, x_label: str, y_label: str) -> None:
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=5)


def _svg(name: str, described: str, height_inches: float, draw: Callable[[Figure], None]) -> str:
    """Draws with settings of our own, whatever the user's matplotlibrc says; `described` is for who cannot see it."""
    import matplotlib.style
    from matplotlib.figure import Figure

    settings = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "font.family": ["DejaVu Sans"],
        "font.size": FONT_POINTS,
        "axes.labelsize": FONT_POINTS,
        "legend.fontsize": FONT_POINTS,
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": FAINT,
        "axes.facecolor": PAPER,
        "figure.facecolor": PAPER,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "xtick.labelcolor": INK,
        "ytick.labelcolor": INK,
        "axes.unicode_minus": False,
    }
    with matplotlib.style.context(["default", settings], after_reset=True):
        figure = Figure(figsize=(WIDTH_INCHES, height_inches), layout="constrained")
        draw(figure)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _finished(written.getvalue(), name, described)


def _finished(svg: str, name: str, described: str) -> str:
    """The bare <svg> element with colour variables, ids of its own (several share a page), and a description."""
    svg = svg[svg.index("<svg") :]
    for variable, (stand_in, fallback) in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{variable}, {fallback})")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', system-ui, sans-serif")
    # matplotlib's style sheet would hold for the whole page: its two rules stand on the element instead
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)
    attributes = f'role="img" aria-label="{html.escape(described)}" stroke-linejoin="round" stroke-linecap="butt"'
    return svg.replace("<svg ", f"<svg {attributes} ", 1)
