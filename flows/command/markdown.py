"""Markdown in a terminal: tables are never cut off, however narrow the window is."""

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Markdown, TableElement
from rich.table import Table
from rich.text import Text

GAP = 2
"""Columns of the window between two of a table."""


class _Table(TableElement):
    """A table whose cells wrap between words; where even so it does not fit, one item for each of its rows.

    Rich's own cuts off what is too wide, also digests and the names of models.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        header = self.header.row.cells if self.header and self.header.row else []
        rows = [[cell.content for cell in row.cells] for row in (self.body.rows if self.body else [])]
        columns = [[cell.content.plain, *(row[number].plain for row in rows)] for number, cell in enumerate(header)]
        if widths := _widths(columns, options.max_width):
            table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
            for cell, width in zip(header, widths, strict=True):
                table.add_column(cell.content, width=width, justify=cell.justify, overflow="fold")
            for row in rows:
                table.add_row(*row)
            yield table
        else:
            items = Table.grid(padding=(0, 1))
            items.add_column()
            items.add_column(overflow="fold")
            for row in rows:
                named = [
                    Text.assemble((cell.content.plain, "dim"), " ", value)
                    for cell, value in zip(header, row, strict=True)
                ]
                items.add_row("•", Text("  ").join(named))
            yield items


class WholeTables(Markdown):
    elements: ClassVar = {**Markdown.elements, "table_open": _Table}


def _widths(columns: Sequence[Sequence[str]], available: int) -> list[int] | None:
    """Width of each column, so that no word is broken; None where that does not fit. What is left is shared."""
    least = [max(cell_len(word) for cell in cells for word in cell.split() or [""]) for cells in columns]
    wanted = [max(map(cell_len, cells)) for cells in columns]
    left = available - sum(least) - GAP * (len(columns) - 1)
    if left < 0:
        return None
    widths = list(least)
    for waiting, number in enumerate(sorted(range(len(columns)), key=lambda number: wanted[number] - least[number])):
        more = min(wanted[number] - least[number], left // (len(columns) - waiting))
        widths[number], left = widths[number] + more, left - more
    return widths
