"""A study's `report.md`: its prose as a jinja2 template, filled with numbers and read as a `Document`.

It stands as `table.md` does: a title, the verdict between **, a sentence of numbers, points, `Not shown, and to keep in
mind:` with its points, the question with facts, then sections. A line `![name]` is the place of a figure, a table, an
excerpt or what is folded; `{{ texts | points }}` writes a list.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tasks.findings import arms, numbers
from tasks.findings.document import NOT_SHOWN, Document, Excerpt, Figure, Folded, Section
from tasks.findings.final_results import StudyResults, numerics_changed
from tasks.findings.gates import checks
from tasks.findings.table import Table

Piece = Figure | Table | Excerpt | Folded
Pieces = Mapping[str, Piece | Sequence[Piece] | None]
PLACE = re.compile(r"!\[(.+)\]")
WORDS = {name: value for room in (numbers, arms) for name, value in vars(room).items() if callable(value)}


class _Lines(str):
    """The one value that may hold ends of lines: whatever else a template is given cannot begin a list or a section."""


def fill(template: Path, results: StudyResults, pieces: Pieces, **values: Any) -> Document:
    """The document of a `report.md`.

    It may name `results`, the `values`, and every function of `numbers` and `arms`; the pieces `gates` and
    `audit` are made of `results`. A piece that is None leaves its place empty. ValueError for a place that has no piece
    and a piece that has no place.
    """
    text, pieces = template.read_text("utf-8"), {**pieces, **checks(results.gates, results.audit)}
    if unplaced := {*PLACE.findall(text)} ^ {*pieces}:
        raise ValueError(f"{template}: places without a piece, or pieces without a place: {sorted(unplaced)}")
    environment = Environment(
        loader=FileSystemLoader(template.parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: " ".join(value.split()) if type(value) is str else value,
    )
    environment.filters["line"] = arms.number_line
    environment.filters["points"] = lambda texts: _Lines("\n".join(f"- {' '.join(text.split())}" for text in texts))
    known = {**WORDS, "numerics_changed": numerics_changed, "results": results, **values}
    return _document(environment.get_template(template.name).render(known), pieces)


def _document(text: str, pieces: Pieces) -> Document:
    heading, *parts = re.split("^## ", text, flags=re.MULTILINE)
    title, _, heading = heading.partition("\n")
    answer, _, limits = heading.partition(f"\n{NOT_SHOWN}\n")
    top = _section("", answer, pieces)
    verdict, *lead = top.texts
    not_shown = list(takewhile(lambda block: block.startswith("- "), _blocks(limits)))
    below = _section("", "\n\n".join(_blocks(limits)[len(not_shown) :]), pieces)
    return Document(
        title.removeprefix("# "),
        verdict.removeprefix("**").removesuffix("**"),
        " ".join(lead),
        top.points,
        next(iter(top.figures), None),
        _points("\n".join(not_shown)),
        " ".join(below.texts),
        below.points,
        [_section(title, text, pieces) for title, _, text in (part.partition("\n") for part in parts)],
    )


def _section(title: str, text: str, pieces: Pieces) -> Section:
    blocks = [block for block in _blocks(text) if not PLACE.match(block)]
    texts = [" ".join(block.split()) for block in blocks if not block.startswith("- ")]
    points = [point for block in blocks if block.startswith("- ") for point in _points(block)]
    placed: list[Piece | None] = []
    for piece in (pieces[name] for name in PLACE.findall(text)):
        placed += piece if isinstance(piece, Sequence) else [piece]
    kinds: list[list[Any]] = [
        [piece for piece in placed if isinstance(piece, kind)] for kind in (Figure, Excerpt, Table, Folded)
    ]
    return Section(title, texts, points, *kinds)


def _blocks(text: str) -> list[str]:
    return [block.strip() for block in re.split(r"\n\s*\n", text) if block.strip()]


def _points(block: str) -> list[str]:
    return [" ".join(point.split()) for point in re.split("^- ", block, flags=re.MULTILINE) if point.strip()]
