"""Tables as Markdown, the one form that a terminal, a file and the Prefect UI all show, and as CSV."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

SPAN = re.compile(r"([+-]?[\d.]+(?:e[+-]?\d+)?%?) to ([+-]?[\d.]+(?:e[+-]?\d+)?%?)")
"""An interval, as `tasks.findings.numbers` writes it."""
NUMBER = re.compile(r"([<>] )?[+-]?([\d,]*\.\d+|[\d,]*\d)(e-?\d+)?( ?%)?")
"""Each way to match it is the only one, so that no cell takes long, however many digits it has."""
FORMULA = re.compile("[\\s\0-\x1f\u200b-\u200f\ufeff]*[=+@\uff1d\uff0b\uff0d\uff20-]|[\t\r\n]")
"""The beginning of a cell that spreadsheets run, whatever invisible marks stand before it."""
NO_SPAN = ("", "-", "none (one source)")


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

    def csv(self) -> str:
        """The table for a program: no bold, no thousands separators; of an interval both ends, as two columns."""
        columns = []
        for number, name in enumerate(self.header):
            cells = [_without_marks(str(row[number])) for row in self.rows]
            if any(map(SPAN.fullmatch, cells)) and all(SPAN.fullmatch(cell) or cell in NO_SPAN for cell in cells):
                title = _without_marks(self.header[number - 1]) if number else name
                for side, end in ((1, "low"), (2, "high")):
                    ends = [match[side] if (match := SPAN.fullmatch(cell)) else "" for cell in cells]
                    columns.append([f"{title} {end}", *ends])
            else:
                columns.append([_without_marks(name), *cells])
        file = io.StringIO()
        csv.writer(file).writerows(map(no_formula, row) for row in zip(*columns, strict=True))
        return file.getvalue()


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


def no_formula(cell: object) -> object:
    """The cell of a CSV file, behind a ' where a spreadsheet would run it as a formula: names may be a stranger's."""
    if not isinstance(cell, str) or not FORMULA.match(cell) or cell in NO_SPAN:
        return cell
    try:
        float(cell.replace(",", "").rstrip(" %"))
    except ValueError:
        return cell if SPAN.fullmatch(cell) else f"'{cell}"
    return cell


def without_links(markdown: str) -> str:
    """Markdown with its tables and bold words, in which nothing of others leads anywhere, is loaded or is HTML.

    A bracket that is escaped already stays so: `\\\\[` is an escaped backslash before one that is not.
    """
    return re.sub(r"\\.|[<\[]", lambda match: match[0] if match[0][0] == "\\" else f"\\{match[0]}", markdown)


def _without_marks(cell: str) -> str:
    """A cell without the marks of bold, and a number without thousands separators."""
    plain = re.sub(r"\*\*([^*]+)\*\*", r"\1", cell)
    return plain.replace(",", "") if _is_number(plain) else plain


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or NUMBER.fullmatch(cell) is not None
