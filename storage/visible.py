"""Makes text from files of others safe to print: none of it moves the cursor, or hides other text.

All that Ratchet prints passes one of three places, and each calls `visible`: the consoles of `flows/command`, `_say` of
`python -m storage`, and, after `log_visibly`, each line of a log and the traceback of an error.
"""

from __future__ import annotations

import logging
import re
import sys
import traceback
from typing import Any

from rich.cells import cell_len

HIDDEN = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Control codes but tab and line end, marks that turn the direction of text, and lone surrogates."""
CONTINUES = "\n      | "


def visible(text: str) -> str:
    """The text with its control codes written as escapes, such as \\x1b; tabs and line ends stay."""
    return HIDDEN.sub(lambda match: ascii(match[0])[1:-1], text)


def line(text: str) -> str:
    """Makes text `visible` as one entry of a list: a line end in it begins none that could be taken for ours."""
    return visible(text.replace("\r\n", "\n")).replace("\n", CONTINUES)


def wrapped(text: str, columns: int) -> str:
    """Makes text `visible`, and breaks each line that is wider than a terminal between words, with a hanging indent.

    The indent is the last column that begins in the line's first half, else a bit more than the line's own. A word that
    is wider than the terminal stays whole, so that a path can be copied.
    """
    return "\n".join(_wrapped(line_, columns) for line_ in visible(text).split("\n"))


def _wrapped(text: str, columns: int) -> str:
    if cell_len(text) <= columns:
        return text
    half = text[: columns // 2]
    gap = max((match.end() for match in re.finditer(r"(?<=\S) {2,}(?=\S)", half)), default=0)
    indent = gap or len(half) - len(half.lstrip(" |")) + 2
    lines = [""]
    for gap_, word in re.findall(r"(\s*)(\S+)", text):
        if lines[-1].strip() and cell_len(lines[-1] + gap_ + word) > columns >= cell_len(word):
            lines.append(" " * min(indent, columns - cell_len(word)) + word)
        else:
            lines[-1] += gap_ + word
    return "\n".join(lines)


class _Record(logging.LogRecord):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.exc_info:
            self.exc_text = visible(logging.Formatter().formatException(self.exc_info))

    def getMessage(self) -> str:
        return visible(super().getMessage())


def log_visibly() -> None:
    """Makes all that this process logs, and the traceback it ends with, `visible`."""

    def print_error(*error: Any) -> None:
        sys.stderr.write(visible("".join(traceback.format_exception(*error))))

    logging.setLogRecordFactory(_Record)
    sys.excepthook = print_error
