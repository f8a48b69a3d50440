"""The stages of a study as a picture, from left to right: a box for each run, and a line from it to what reads it.

Layers as in Sugiyama et al. 1981: columns by the longest way to the end, a bend in each column that a line passes, and
in each column the order of what its boxes are joined with.
"""

import html
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import networkx as nx

from tasks.findings.dag import Dag, Node
from tasks.findings.document import Figure
from tasks.findings.figures import COLOURS

MOST_IN_A_COLUMN = 32
"""The most runs beside each other: of more, those of a stage are drawn as one box that says how many they are."""
LETTER, LINE, MARGIN = 6.9, 15, 8
"""The size of a box by its text, in pixels: width of a letter, height of a line, room around them."""
GAP_ACROSS, GAP_DOWN, BEND = 56, 10, 6
"""The pixels between columns, between boxes, and of a place where a line passes between two boxes."""
SWEEPS = 8
"""The number of times that the columns are put in order."""
INK, FAINT, PAPER = (f"var(--{name}, {COLOURS[name][1]})" for name in ("ink", "faint", "paper"))

CAPTION = (
    "The stages, from what each run wrote down before it began: its stage, what tells it from others of that stage, "
    "and the name of its run directory. A line leads from what is read to what reads it; what a run reads by way of "
    "another too has no line of its own."
)
Columns = list[list[str]]
"""The names of boxes and of bends, by column and from above."""
Lines = list[list[str]]
"""Lines: the box that each begins at, the bends that it passes, and the box that it ends at."""


def dag_figure(dag: Dag, name: str = "stages") -> Figure:
    """The picture; `name` is its file's, and begins its ids. Each run stands as near to what reads it as it can, so
    that those of a kind stand together."""
    stages = dict.fromkeys(node.stage for node in dag.nodes.values())
    description = f"{len(dag.nodes)} runs of {len(stages)} stages: {', '.join(stages)}."
    from_the_end = nx.topological_generations(_graph(dag).reverse())
    columns = [sorted(names, key=[*dag.nodes].index) for names in from_the_end][::-1]
    if max(map(len, columns)) > MOST_IN_A_COLUMN:
        columns, dag = _by_stage(columns, dag)
    lines = _add_bends(columns, dag)
    _order(columns, lines, dag)
    return Figure(name, _svg(name, description, columns, lines, dag), CAPTION, wide=True)


def _graph(dag: Dag) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(dag.nodes)
    graph.add_edges_from((source, name) for name, node in dag.nodes.items() for source in node.inputs)
    return graph


def _by_stage(columns: Columns, dag: Dag) -> tuple[Columns, Dag]:
    """The columns and runs with one box for all runs of a stage that stand in one column."""
    box = {name: f"{column}-{dag.nodes[name].stage}" for column, names in enumerate(columns) for name in names}
    nodes: dict[str, Node] = {}
    for name, node in ((name, dag.nodes[name]) for names in columns for name in names):
        read = tuple(dict.fromkeys(box[source] for source in node.inputs))
        if node_of_box := nodes.get(box[name]):
            inputs = tuple(dict.fromkeys(node_of_box.inputs + read))
            nodes[box[name]] = replace(node_of_box, cell="", note="", inputs=inputs, runs=node_of_box.runs + 1)
        else:
            nodes[box[name]] = replace(node, inputs=read)
    return [list(dict.fromkeys(box[name] for name in names)) for names in columns], Dag(nodes)


def _add_bends(columns: Columns, dag: Dag) -> Lines:
    """The lines, without those from what a run gets through another of its inputs too; those from one box share their
    bend in a column that they pass, which is added to `columns`."""
    column_of = {name: number for number, names in enumerate(columns) for name in names}
    direct = nx.transitive_reduction(_graph(dag))
    lines = []
    for reader, node in dag.nodes.items():
        for source in filter(direct.pred[reader].__contains__, node.inputs):
            bends = [f"{source}>{number}" for number in range(column_of[source] + 1, column_of[reader])]
            for number, bend in enumerate(bends, column_of[source] + 1):
                if bend not in columns[number]:
                    columns[number].append(bend)
            lines.append([source, *bends, reader])
    return lines


def _order(columns: Columns, lines: Lines, dag: Dag) -> None:
    """Puts the boxes of each column at the mean height of what they are joined with; those of a stage stay together."""
    joined: dict[str, set[str]] = {name: set() for column in columns for name in column}
    for line in lines:
        for begin, end in pairwise(line):
            joined[begin].add(end)
            joined[end].add(begin)
    for number in range(SWEEPS):
        height = {name: (place + 0.5) / len(column) for column in columns for place, name in enumerate(column)}
        for column in columns if number % 2 else reversed(columns):
            mean = {name: sum(height[end] for end in joined[name]) / (len(joined[name]) or 1) for name in column}
            stage = {name: dag.nodes[name].stage if name in dag.nodes else name for name in column}
            column.sort(key=lambda name: (stage[name], mean[name]))
            blocks = [list(block) for _, block in groupby(column, key=stage.__getitem__)]
            blocks.sort(key=lambda block: sum(mean[name] for name in block) / len(block))
            column[:] = [name for block in blocks for name in block]
            height |= {name: (place + 0.5) / len(column) for place, name in enumerate(column)}


@dataclass(frozen=True)
class _Place:
    """The left and right edge of a box or a bend and its middle height, in pixels."""

    left: float
    right: float
    y: float


def _svg(name: str, description: str, columns: Columns, lines: Lines, dag: Dag) -> str:
    box_height = MARGIN + LINE * max(len(node.lines) for node in dag.nodes.values())
    heights = {box: float(box_height if box in dag.nodes else BEND) for column in columns for box in column}
    height = max(sum(heights[box] + GAP_DOWN for box in column) for column in columns)
    places: dict[str, _Place] = {}
    left = 1.0
    for column in columns:
        texts = [text for box in column if box in dag.nodes for text in dag.nodes[box].lines]
        right = left + round(2 * MARGIN + LETTER * max(map(len, texts)))
        room = (height - sum(heights[box] for box in column)) / len(column)
        top = room / 2
        for box in column:
            places[box] = _Place(left, right, round(top + heights[box] / 2, 1))
            top += heights[box] + room
        left = right + GAP_ACROSS
    steps = dict.fromkeys(pairs for line in lines for pairs in pairwise(line))  # shared bends are drawn once
    drawn = [_line(places[begin], places[end]) for begin, end in steps]
    drawn += [
        f"M{places[box].left:g} {places[box].y:g}H{places[box].right:g}" for box in places if box not in dag.nodes
    ]
    path = f'<path d="{"".join(drawn)}" fill="none" stroke="{FAINT}" stroke-opacity="0.7"/>'
    boxes = [_box(places[box], box_height, node.lines) for box, node in dag.nodes.items()]
    width = left - GAP_ACROSS + 1
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    attributes = f'id="{name}" role="img" aria-label="{html.escape(description)}"'
    font = 'font-family="\'DejaVu Sans\', system-ui, sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {attributes} {size} {font}>{path}{"".join(boxes)}</svg>'


def _line(begin: _Place, end: _Place) -> str:
    middle = (begin.right + end.left) / 2
    return f"M{begin.right:g} {begin.y:g}C{middle:g} {begin.y:g} {middle:g} {end.y:g} {end.left:g} {end.y:g}"


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
