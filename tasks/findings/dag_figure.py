"""The stages of a study as a picture, from left to right: a box for each run, and a line from it to what reads it.

Layers as in Sugiyama et al. 1981: columns by the longest way to the end, a bend in each column that a line passes, and
in each column the order of what its boxes are joined with.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from tasks.findings.dag import Dag, Node
from tasks.findings.document import Figure
from tasks.findings.figures import COLOURS

MOST_IN_A_COLUMN = 32
"""With more runs beside each other, those of one stage are drawn as one box that says how many they are."""
LETTER, LINE, MARGIN = 6.9, 15, 8
"""Size of a box by its text, in pixels: width of a letter, height of a line, room around them."""
GAP_ACROSS, GAP_DOWN, BEND = 56, 10, 6
"""Between columns, between boxes, and the height of a place where a line passes between two boxes."""
SWEEPS = 8
"""How often the columns are put in order."""
INK, FAINT, PAPER = (f"var(--{name}, {COLOURS[name][1]})" for name in ("ink", "faint", "paper"))

CAPTION = (
    "The stages, from what each run wrote down before it began: its stage, what tells it from others of that stage, "
    "and the name of its run directory. A line leads from what is read to what reads it; what a run reads by way of "
    "another too has no line of its own."
)
Columns = list[list[str]]
"""Names of boxes, and of bends, by column and from above."""
Lines = list[list[str]]
"""Each as the box that it begins at, the bends that it passes, and the box that it ends at."""


def dag_figure(dag: Dag, name: str = "stages") -> Figure:
    """The picture; `name` is its file's, and begins its ids."""
    stages = dict.fromkeys(node.stage for node in dag.nodes.values())
    described = f"{len(dag.nodes)} runs of {len(stages)} stages: {', '.join(stages)}."
    columns = _columns(dag)
    if max(map(len, columns)) > MOST_IN_A_COLUMN:
        columns, dag = _by_stage(columns, dag)
    lines = _with_bends(columns, _reduced({one: node.inputs for one, node in dag.nodes.items()}))
    _in_order(columns, lines, dag)
    return Figure(name, _svg(name, described, columns, lines, dag), CAPTION, wide=True)


def _columns(dag: Dag) -> Columns:
    """Each run stands as near to what reads it as it can, so that those of a kind stand together."""
    before_end: dict[str, int] = {}
    for name, node in reversed(dag.nodes.items()):
        own = before_end.setdefault(name, 0)
        for given in node.inputs:
            before_end[given] = max(before_end.get(given, 0), own + 1)
    last = max(before_end.values())
    columns: Columns = [[] for _ in range(last + 1)]
    for name in dag.nodes:
        columns[last - before_end[name]].append(name)
    return columns


def _by_stage(columns: Columns, dag: Dag) -> tuple[Columns, Dag]:
    """The same with one box for all runs of a stage that stand in one column."""
    box = {name: f"{column}-{dag.nodes[name].stage}" for column, names in enumerate(columns) for name in names}
    nodes: dict[str, Node] = {}
    for name, node in ((name, dag.nodes[name]) for names in columns for name in names):
        read = tuple(dict.fromkeys(box[given] for given in node.inputs))
        if known := nodes.get(box[name]):
            inputs = tuple(dict.fromkeys(known.inputs + read))
            nodes[box[name]] = replace(known, cell="", note="", inputs=inputs, runs=known.runs + 1)
        else:
            nodes[box[name]] = replace(node, inputs=read)
    return [list(dict.fromkeys(box[name] for name in names)) for names in columns], Dag(nodes)


def _reduced(reads: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """What each one reads and gets from no other of those that it reads; `reads` names the read before the readers."""
    behind: dict[str, set[str]] = {}
    for name, given in reads.items():
        behind[name] = set(given).union(*(behind[one] for one in given))
    return {
        name: [one for one in given if not any(one in behind[other] for other in given)]
        for name, given in reads.items()
    }


def _with_bends(columns: Columns, reads: Mapping[str, Iterable[str]]) -> Lines:
    """The lines; what one box sends past a column shares one bend there, which is added to `columns`."""
    column_of = {name: number for number, names in enumerate(columns) for name in names}
    lines = []
    for reader, given in reads.items():
        for one in given:
            bends = [f"{one}>{number}" for number in range(column_of[one] + 1, column_of[reader])]
            for number, bend in enumerate(bends, column_of[one] + 1):
                if bend not in columns[number]:
                    columns[number].append(bend)
            lines.append([one, *bends, reader])
    return lines


def _in_order(columns: Columns, lines: Lines, dag: Dag) -> None:
    """Puts the boxes of each column at the mean height of what they are joined with; those of a stage stay together."""
    joined: dict[str, set[str]] = {name: set() for column in columns for name in column}
    for line in lines:
        for one, other in pairwise(line):
            joined[one].add(other)
            joined[other].add(one)
    for number in range(SWEEPS):
        height = {name: (place + 0.5) / len(column) for column in columns for place, name in enumerate(column)}
        for column in columns if number % 2 else reversed(columns):
            mean = {name: sum(height[one] for one in joined[name]) / (len(joined[name]) or 1) for name in column}
            stage = {name: dag.nodes[name].stage if name in dag.nodes else name for name in column}
            column.sort(key=lambda name: (stage[name], mean[name]))
            blocks = [list(block) for _, block in groupby(column, key=stage.__getitem__)]
            blocks.sort(key=lambda block: sum(mean[name] for name in block) / len(block))
            column[:] = [name for block in blocks for name in block]
            height |= {name: (place + 0.5) / len(column) for place, name in enumerate(column)}


@dataclass(frozen=True)
class _Place:
    """Of a box or a bend: left and right edge, and middle height, in pixels."""

    left: float
    right: float
    y: float


def _svg(name: str, described: str, columns: Columns, lines: Lines, dag: Dag) -> str:
    box_height = MARGIN + LINE * max(len(node.lines) for node in dag.nodes.values())
    heights = {one: float(box_height if one in dag.nodes else BEND) for column in columns for one in column}
    height = max(sum(heights[one] + GAP_DOWN for one in column) for column in columns)
    places: dict[str, _Place] = {}
    left = 1.0
    for column in columns:
        texts = [text for one in column if one in dag.nodes for text in dag.nodes[one].lines]
        right = left + round(2 * MARGIN + LETTER * max(map(len, texts)))
        room = (height - sum(heights[one] for one in column)) / len(column)
        top = room / 2
        for one in column:
            places[one] = _Place(left, right, round(top + heights[one] / 2, 1))
            top += heights[one] + room
        left = right + GAP_ACROSS
    steps = dict.fromkeys(pairs for line in lines for pairs in pairwise(line))  # shared bends are drawn once
    drawn = [_line(places[one], places[other]) for one, other in steps]
    drawn += [
        f"M{places[one].left:g} {places[one].y:g}H{places[one].right:g}" for one in places if one not in dag.nodes
    ]
    path = f'<path d="{"".join(drawn)}" fill="none" stroke="{FAINT}" stroke-opacity="0.7"/>'
    boxes = [_box(places[one], box_height, node.lines) for one, node in dag.nodes.items()]
    width = left - GAP_ACROSS + 1
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    attributes = f'id="{name}" role="img" aria-label="{html.escape(described)}"'
    font = 'font-family="\'DejaVu Sans\', system-ui, sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes} {size} {font}>{path}{"".join(boxes)}</svg>'


def _line(one: _Place, other: _Place) -> str:
    middle = (one.right + other.left) / 2
    return f"M{one.right:g} {one.y:g}C{middle:g} {one.y:g} {middle:g} {other.y:g} {other.left:g} {other.y:g}"


def _box(place: _Place, height: float, lines: list[str]) -> str:
    x, y = place.left, place.y - height / 2
    shape = f'<rect x="{x:g}" y="{y:g}" width="{place.right - x:g}" height="{height:g}" rx="5"'
    top = place.y - LINE * len(lines) / 2 + 11
    looks = [f'fill="{INK}" font-weight="700"', *[f'fill="{FAINT}"'] * len(lines)]  # the stage stands out
    texts = [
        f'<text x="{x + MARGIN:g}" y="{top + LINE * number:g}" {look}>{html.escape(text)}</text>'
        for number, (text, look) in enumerate(zip(lines, looks, strict=False))
    ]
    return f'{shape} fill="{PAPER}" stroke="{FAINT}"/>{"".join(texts)}'
