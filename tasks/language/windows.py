"""How a document is cut for its perplexity: each alone, every token predicted exactly once.

The rolling rule of lm-evaluation-harness (`get_rolling_token_windows` with a context of one token): an end-of-text
token stands in front; each window predicts the next `length` tokens; the last one predicts what remains and is
filled up on its left with tokens that were predicted before.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Window:
    """Token ids as the model reads them, of which the last `scored` are predicted: `len(tokens) <= length + 1`."""

    tokens: list[int]
    scored: int


def rolling_windows(tokens: list[int], end_of_text: int, length: int) -> list[Window]:
    """The windows of one document; the `scored` of all add up to `len(tokens)`."""
    stream = [end_of_text, *tokens]
    windows = []
    for first in range(1, len(stream), length):
        end = min(first + length, len(stream))
        begin = max(0, end - length - 1)
        windows.append(Window(stream[begin:end], end - first))
    return windows
