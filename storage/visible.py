"""Makes text from files of others safe to print: none of it moves the cursor, or hides other text.

All that Ratchet prints passes one of three places, and each calls `visible`: the consoles of `flows/command`, `_say` of
`python -m storage`, and, after `log_visibly`, each line of a log and the traceback of an error.
"""

import io
import logging
import re
import sys
import traceback
import unicodedata
from functools import lru_cache
from typing import Any

from rich.cells import cell_len

SHOWN = frozenset("\t\n\u200c\u200d\u06dd\u070f\u08e2" + "".join(map(chr, range(0x600, 0x606))))
"""Of HIDING: line ends, what joins letters or pictures, and signs around numbers, which are seen."""
HIDING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of Unicode: control codes, marks of format and direction, lone surrogates, ends of lines and the like."""
BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2065\u3164\uffa0" + "".join(map(chr, range(0xFFF0, 0xFFF9))))
"""Letters and others without a shape; so are all in PLANE."""
PLANE = range(0xE0000, 0xE1000)
PLAIN = re.compile(r"[\t\n\x20-\x7e]*")
CONTINUES = "\n      | "


def visible(text: str) -> str:
    """The text with what cannot be seen written as escapes, such as \\x1b; tabs and line ends stay."""
    return text if PLAIN.fullmatch(text) else "".join(ascii(c)[1:-1] if is_hidden(c) else c for c in text)


@lru_cache(maxsize=4096)
def is_hidden(character: str) -> bool:
    """True where it leaves nothing to see, or moves what does."""
    hides = unicodedata.category(character) in HIDING or character in BLANK or ord(character) in PLANE
    return hides and character not in SHOWN


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
    """Makes all that this process logs, and the traceback it ends with, `visible`; what it prints, a stage's own words
    too, ends nothing in a locale that has no such letters."""

    def print_error(*error: Any) -> None:
        sys.stderr.write(visible("".join(traceback.format_exception(*error))))

    logging.setLogRecordFactory(_Record)
    sys.excepthook = print_error
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
