"""Figures as SVG: text stays text, colours are CSS variables with a fallback, and equal data give equal bytes.

One SVG stands alone (as a file, in the Prefect UI) with the fallback colours, and inline in a page takes the
colours of the page, light or dark. Series differ by line style and marker as well as by colour.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tasks.findings.document import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

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
FONT_POINTS = 9.0


@dataclass(frozen=True)
class SeriesStyle:
    """The style of one series: line and marker differ too, for whoever sees no colour."""

    colour: str
    line: str | tuple[int, tuple[float, ...]]
    marker: str


SERIES_STYLES = (
    SeriesStyle(COLOURS["series-1"][0], (0, (1, 1.5)), "^"),
    SeriesStyle(COLOURS["series-2"][0], "-", "o"),
    SeriesStyle(COLOURS["series-3"][0], (0, (5, 2)), "s"),
)


@dataclass(frozen=True)
class Curve:
    """Points [x, y] of one series; `dots` marks each point, else a thin line joins them."""

    name: str
    style: SeriesStyle
    points: Sequence[Sequence[float]]
    dots: bool = False


def curves(name: str, caption: str, numbers: str, drawn: Sequence[Curve], x_label: str, y_label: str) -> Figure:
    """Lines over a common x axis, with a legend below."""

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for curve in drawn:
            x, y = zip(*curve.points, strict=True)
            marker = {"marker": curve.style.marker, "markersize": 4} if curve.dots else {"alpha": 0.55}
            width = 1.6 if curve.dots else 1.0
            axes.plot(
                x, y, label=curve.name, color=curve.style.colour, linestyle=curve.style.line, linewidth=width, **marker
            )
        _label(axes, x_label, y_label)
        canvas.legend(loc="outside lower center", ncols=2, frameon=False)

    return _figure(name, caption, numbers, 3.5, draw)


@dataclass(frozen=True)
class Estimated:
    """A row of `forest`: an estimate with its interval, as far as it has these; rows of one `kind` stand together."""

    kind: str
    label: str
    value: float | None
    interval: Sequence[float] | None = None


def forest(
    name: str,
    caption: str,
    rows: Sequence[Estimated],
    x_label: str,
    form: Callable[[float], str],
    line: float = 0.0,
    band: tuple[float, float] | None = None,
) -> Figure:
    """The figure that answers: rows by kind, the first row above all others in colour, each beside `line`.

    `band` is the range that is too small to matter, or that is asked for; `form` writes a number.
    """
    numbers = "; ".join(
        f"{row.label} {'-' if row.value is None else form(row.value)}"
        + (f" ({' to '.join(map(form, row.interval))})" if row.interval else "")
        for row in rows
    )
    labels: list[str] = []
    places: list[int] = []
    for place, row in enumerate(rows):
        if not place or rows[place - 1].kind != row.kind:
            labels.append(row.kind)
        places.append(len(labels))
        labels.append(row.label)

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        if band is not None:
            axes.axvspan(*band, color=GRID, linewidth=0, alpha=0.6)
        axes.axvline(line, color=FAINT, linewidth=0.9)
        for place, row in zip(places, rows, strict=True):
            first = place == 1
            colour = SERIES_STYLES[2].colour if first else INK
            if row.interval is not None:
                axes.hlines(place, *row.interval, color=colour, linewidth=2.0 if first else 1.4)
                axes.plot(row.interval, [place, place], "|", color=colour, markersize=7)
            if row.value is not None:
                axes.plot(row.value, place, "D" if first else "o", color=colour, markersize=6 if first else 4.5)
        _rows(axes, labels, x_label)
        for place, text in enumerate(axes.get_yticklabels()):
            if place not in places:
                text.set(color=FAINT, fontsize=FONT_POINTS - 1)
        axes.tick_params(axis="y", length=0)

    return _figure(name, caption, numbers, 0.7 + 0.23 * len(labels), draw, width_inches=5.6)


@dataclass(frozen=True)
class Dots:
    """A row of `dots`: its single values, and their mean with its interval where there is one."""

    label: str
    values: Sequence[float]
    mean: float | None = None
    interval: Sequence[float] | None = None


def dots(name: str, caption: str, numbers: str, rows: Sequence[Dots], x_label: str) -> Figure:
    """Every single value of a row as an open dot and their mean with its interval above them; a row may have none."""

    def draw(canvas: Canvas) -> None:
        axes = canvas.add_subplot()
        for place, row in enumerate(rows):
            below = place + 0.14 if row.mean is not None else place
            axes.plot(row.values, [below] * len(row.values), "o", color=SERIES_STYLES[1].colour, fillstyle="none")
            if row.mean is not None:
                axes.plot(row.mean, place - 0.14, "D", color=INK, markersize=5)
            if row.interval is not None:
                axes.hlines(place - 0.14, *row.interval, color=INK, linewidth=1.6)
                axes.plot(row.interval, [place - 0.14] * 2, "|", color=INK, markersize=7)
        _rows(axes, [row.label for row in rows], x_label)

    return _figure(name, caption, numbers, 0.8 + 0.36 * len(rows), draw)


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


def _figure(
    name: str,
    caption: str,
    numbers: str,
    height_inches: float,
    draw: Callable[[Canvas], None],
    width_inches: float = 4.0,
) -> Figure:
    """Draws with fixed settings, whatever the user's matplotlibrc says; `numbers` are for who cannot see it."""
    import matplotlib.style
    from matplotlib.figure import Figure as Canvas

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
        canvas = Canvas(figsize=(width_inches, height_inches), layout="constrained")
        draw(canvas)
        file = io.StringIO()
        canvas.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    description = f"{caption} {numbers}." if numbers else caption
    return Figure(name, _finish(file.getvalue(), name, description), caption)


def _finish(svg: str, name: str, description: str) -> str:
    """The bare <svg> element with colour variables, ids of its own (several share a page), and a description."""
    svg = svg[svg.index("<svg") :]
    for variable, (stand_in, fallback) in COLOURS.items():
        svg = svg.replace(stand_in, f"var(--{variable}, {fallback})")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", svg)
    svg = svg.replace("'DejaVu Sans'", "'DejaVu Sans', system-ui, sans-serif")
    # matplotlib's style sheet would hold for the whole page: its two rules stand on the element instead
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", svg, count=1, flags=re.DOTALL)
    attributes = f'role="img" aria-label="{html.escape(description)}" stroke-linejoin="round" stroke-linecap="butt"'
    return svg.replace("<svg ", f"<svg {attributes} ", 1)
