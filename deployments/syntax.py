"""The syntax tree of a source file, also where several threads ask at once."""

from __future__ import annotations

import ast

TRIES = 5


def parsed(source: str, file: str = "<unknown>") -> ast.Module:
    """`ast.parse`, asked again where CPython is confused: SyntaxError for what is no Python, as there.

    All threads of a process share one counter of depth, and a thread that parses while another does may be told of a
    mismatch that is none (SystemError: python/cpython issue 106905). A study's flow run has threads of Prefect's.
    """
    for _ in range(TRIES - 1):
        try:
            return ast.parse(source, file)
        except SystemError:
            continue
    return ast.parse(source, file)
