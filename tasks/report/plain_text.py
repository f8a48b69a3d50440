"""Plain text for an email: paragraphs and points in lines of bounded length."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

COLUMNS = 78


def paragraph(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table: the first column stands left, the others right."""
    widths = [max(len(row[place]) for row in [header, *rows]) for place in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *others = zip(row, widths, strict=True)
        return "  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)])

    return "\n".join(map(line, [header, *rows]))


def points(texts: Sequence[str]) -> str:
    return "\n".join(
        textwrap.fill(
            text,
            COLUMNS,
            initial_indent="- ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for text in texts
    )
