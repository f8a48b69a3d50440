"""Tables as Markdown: the one form that a terminal, a file and the Prefect UI all show."""

from __future__ import annotations

from collections.abc import Sequence


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table, its columns padded so that it also reads well as plain text; numbers stand right."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(2, *(len(row[column]) for row in [list(header), *cells])) for column in range(len(header))]
    right = [bool(cells) and all(_is_number(row[column]) for row in cells) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * (width - 1) + (":" if to_right else "-") for width, to_right in zip(widths, right, strict=True)]
    return "\n".join([line(list(header)), line(rule), *(line(row) for row in cells)])


def _is_number(cell: str) -> bool:
    return cell in ("", "-") or cell.lstrip("+-").replace(",", "").replace(".", "", 1).replace(" %", "").isdigit()
