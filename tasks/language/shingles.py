"""How much of one text stands in others: shares of common 13-word shingles.

Thirteen words is the window of GPT-3's contamination check (Brown et al. 2020, appendix C).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

import numpy as np

WORDS = 13
_WORD = re.compile(r"\w+")
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplication modulo 2^64 loses nothing


class Shingler:
    """Turns texts into 64-bit shingle hashes; remembers the hash of each word it has seen.

    Two different shingles share a hash with probability about 2^-64, whatever PYTHONHASHSEED is.
    """

    def __init__(self) -> None:
        self._words: dict[str, int] = {}

    def shingles(self, text: str) -> np.ndarray:
        """Distinct shingle hashes of the lower-cased words of `text`, sorted, uint64 [S].

        A text of fewer than 13 words has one shingle of all its words; one without words has none.
        """
        words = _WORD.findall(text.lower())
        if not words:
            return np.empty(0, dtype=np.uint64)
        hashes = np.fromiter((self._hash(word) for word in words), dtype=np.uint64, count=len(words))
        width = min(WORDS, len(hashes))
        starts = len(hashes) - width + 1
        rolled = np.zeros(starts, dtype=np.uint64)
        for offset in range(width):
            rolled = rolled * _BASE + hashes[offset : offset + starts]  # wraps modulo 2^64, as intended
        return np.unique(rolled)

    def _hash(self, word: str) -> int:
        known = self._words.get(word)
        if known is None:
            known = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")
            self._words[word] = known
        return known


class Overlap:
    """Measures which share of a text's shingles stands anywhere in a set of reference texts."""

    def __init__(self, references: Iterable[str]) -> None:
        self._shingler = Shingler()
        parts = [self._shingler.shingles(text) for text in references]
        self._reference = np.unique(np.concatenate(parts)) if parts else np.empty(0, dtype=np.uint64)

    def share(self, text: str) -> float:
        """Share of the distinct shingles of `text` in the references, 0 to 1; 0 for a text without words."""
        shingles = self._shingler.shingles(text)
        if not len(shingles) or not len(self._reference):
            return 0.0
        places = np.searchsorted(self._reference, shingles)
        places[places == len(self._reference)] = 0
        return float(np.mean(self._reference[places] == shingles))
