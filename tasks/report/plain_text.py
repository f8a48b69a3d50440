"""Plain text for an email: paragraphs and points in lines of bounded length."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

COLUMNS = 78


def paragraph(text: str) -> str:
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


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
