"""Tables as Markdown, the one form that a terminal, a file and the Prefect UI all show."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

NUMBER = re.compile(r"([<>] )?[+-]?([\d,]*\.\d+|[\d,]*\d)(e-?\d+)?( ?%)?")
"""Each way to match it is the only one, so that no cell takes long, however many digits it has."""
FORMULA = re.compile("[\\s\0-\x1f\u200b-\u200f\ufeff]*[=+@\uff1d\uff0b\uff0d\uff20-]|[\t\r\n]")
"""The beginning of a cell that spreadsheets run, whatever invisible marks stand before it."""


@dataclass(frozen=True)
class Link:
    """A cell that leads somewhere on a page, to `target` as a URI reference; everywhere else it is its text."""

    text: str
    target: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Table:
    """A table as it stands in Markdown and in HTML; the caption says what it shows, with the unit.

    `ids` names its rows on a page: elsewhere there, a cell that holds X leads to the row `run-X`.
    """

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    ids: Sequence[str] = ()

    @property
    def right(self) -> list[bool]:
        """For each column: it holds numbers only, and stands right."""
        return [
            bool(self.rows) and all(_is_number(str(row[column])) for row in self.rows)
            for column in range(len(self.header))
        ]

    def markdown(self) -> str:
        return f"{self.caption}\n\n{markdown_table(self.header, self.rows)}"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, its columns padded so that it also reads well as plain text; numbers stand right."""
    cells = [[*map(str, row)] for row in rows]
    widths = [max(2, *(len(row[column]) for row in [list(header), *cells])) for column in range(len(header))]
    right = Table("", header, rows).right

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * (width - 1) + (":" if to_right else "-") for width, to_right in zip(widths, right, strict=True)]
    return "\n".join([line(list(header)), line(rule), *(line(row) for row in cells)])


def visible(text: str) -> str:
    """`text` with everything that does not show as a character of its own written as its escape: \\n, \\u202e, \\xad.

    Text that a model made can hold line ends, terminal codes, or marks that turn or hide what stands beside them.
    """
    return "".join(_escape(character) for character in text)


def _escape(character: str) -> str:
    if character == "\\" or (character != " " and unicodedata.category(character)[0] in "CMZ"):
        return ascii(character)[1:-1]
    return character


def no_formula(name: str) -> str:
    """A name as a cell of a CSV file, behind a ' where a spreadsheet would run it: it may be a stranger's."""
    return f"'{name}" if FORMULA.match(name) and not _is_number(name) else name


def without_links(markdown: str) -> str:
    """Markdown with its tables and bold words, in which nothing of others leads anywhere, is loaded or is HTML.

    A bracket that is escaped already stays so: `\\\\[` is an escaped backslash before one that is not.
    """
    return re.sub(r"\\.|[<\[]", lambda match: match[0] if match[0][0] == "\\" else f"\\{match[0]}", markdown)


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or NUMBER.fullmatch(cell) is not None
