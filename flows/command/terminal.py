"""Prints all output. In a terminal lines wrap between words, and no word, number or path is broken or cut off."""

import json
import re
import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment

from storage.run_directory import RunDirectory
from storage.visible import line, visible, wrapped
from tasks.stage import outcome


class Terminal(Console):
    """Shows text as it stands, only its control codes are not sent but written out.

    In a terminal lines are wrapped at its width; elsewhere a line stays whole, for `grep` and the next program.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, soft_wrap=True, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        if self.is_terminal:
            objects = tuple(wrapped(part, self.width) if isinstance(part, str) else part for part in objects)
        super().print(*objects, **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


OUT = Terminal()


def show(text: str, style: str | None = None) -> int:
    """Prints text as it stands."""
    OUT.print(text, style=style)
    return 0


def show_lines(lines: Iterable[str]) -> int:
    """Prints lines, of which none ends early, whatever stood in a file that it tells of."""
    return show("\n".join(map(line, lines)))


def show_json(value: Any) -> int:
    """Prints one JSON document, which no terminal breaks. ValueError for a number that is not finite."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain, allow_nan=False) + "\n")
    return 0


def _plain(value: Any) -> Any:
    """A run by its folder, a dataclass by its fields, and all else in words."""
    if isinstance(value, RunDirectory):
        return str(value.path)
    return vars(value) if hasattr(value, "__dataclass_fields__") else str(value)


def refuse(message: str, code: int = outcome.BAD_INPUT.exit_code) -> int:
    """Prints an error; returns `code`."""
    Terminal(stderr=True).print(f"error: {message}", style="bold red")
    return code


def show_markdown(console: Console, text: str) -> None:
    """Prints Markdown at the window's width; where no terminal reads it, as lines of plain text."""
    if console.is_terminal:
        from flows.command.markdown import WholeTables

        console.print(WholeTables(text, hyperlinks=False), soft_wrap=False)
    else:
        console.print(re.sub(r"\\([\\`*_\[\]<>|~&$#])", r"\1", text))
