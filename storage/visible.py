"""What files of others say, as a terminal shows it: nothing of theirs moves the cursor, or hides what stands there.

All that Ratchet prints passes one of three places, and each asks `visible`: the consoles of `flows/command`, `_say` of
`python -m storage`, and, once `log_visibly` was called, each line of a log and the traceback of an error.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Any

from rich.cells import cell_len

HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control codes but tab and line end, marks that turn the direction of text, and what is no character."""
CONTINUES = "\n      | "


def visible(text: str) -> str:
    """The text with its control codes written as escapes, such as \\x1b; tabs and line ends stay."""
    return HIDDEN.sub(lambda found: ascii(found[0])[1:-1], text)


def line(text: str) -> str:
    """`visible`, as one line of a list: a line end in it begins no other one that could be taken for ours."""
    return visible(text.replace("\r\n", "\n")).replace("\n", CONTINUES)


def wrapped(text: str, columns: int) -> str:
    """`visible`, with each line that is wider than a terminal broken between words; what goes on is indented.

    It stands below what follows the last gap of the line's first half, as of a list with columns, else a bit further
    in than the line. A word that is wider than the terminal stays whole: so a path can be copied from there.
    """
    return "\n".join(_wrapped(one, columns) for one in visible(text).split("\n"))


def _wrapped(text: str, columns: int) -> str:
    if cell_len(text) <= columns:
        return text
    first = text[: columns // 2]
    gap = max((found.end() for found in re.finditer(r"(?<=\S) {2,}(?=\S)", first)), default=0)
    indent = gap or len(first) - len(first.lstrip(" |")) + 2
    lines = [""]
    for gap_, word in re.findall(r"(\s*)(\S+)", text):
        if lines[-1].strip() and cell_len(lines[-1] + gap_ + word) > columns >= cell_len(word):
            lines.append(" " * min(indent, columns - cell_len(word)) + word)
        else:
            lines[-1] += gap_ + word
    return "\n".join(lines)


class _Record(logging.LogRecord):
    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        if self.exc_info:
            self.exc_text = visible(logging.Formatter().formatException(self.exc_info))

    def getMessage(self) -> str:
        return visible(super().getMessage())


def log_visibly() -> None:
    """For a process that people read: whatever it logs, or ends with, is `visible`."""

    def shown(*error: Any) -> None:
        sys.stderr.write(visible("".join(traceback.format_exception(*error))))

    logging.setLogRecordFactory(_Record)
    sys.excepthook = shown
