"""How much of one text stands in others: shares of common 13-word shingles, compared word by word.

Thirteen words is the window of GPT-3's contamination check (Brown et al. 2020, appendix C).
"""

import re
from collections.abc import Iterable
from itertools import repeat

import numpy as np

WORDS = 13
SHIFTS = (1, 2, 4, 5)
"""How far apart two windows stand that make a longer one: of 1 word twice, 2, 4, and of 8 words (8 + 5 are 13)."""
UNKNOWN = -1
_WORD = re.compile(r"\w+")
_ASCII_GAPS = {code: " " for code in range(128) if not _WORD.match(chr(code))}


class Overlap:
    """Measures which share of a text's shingles stands anywhere in a set of reference texts.

    A shingle is a window of 13 lower-cased words; a text of fewer has one, of all its words. Windows are named by
    number, as Karp, Miller and Rosenberg (1972) do: a word by its place among the references' words, a longer window by
    the place of its two halves among the references' pairs of halves. Equal names are equal words: nothing is hashed.
    Memory grows with the references alone.
    """

    def __init__(self, references: Iterable[str]) -> None:
        self._words: dict[str, int] = {}
        self._short: set[tuple[str, ...]] = set()
        named: list[int] = []
        for text in references:
            words = _words(text)
            if len(words) < WORDS:
                self._short.add(tuple(words))
            else:
                named += (self._words.setdefault(word, len(self._words)) for word in words)
                named.append(UNKNOWN)  # no window goes on into the next text
        names_W = np.array(named, dtype=np.int64)
        self._pairs = []
        for shift in SHIFTS:
            keys = _keys(names_W, shift)
            self._pairs.append(np.unique(keys[keys != UNKNOWN]))
            names_W = _places(self._pairs[-1], keys)

    def share(self, text: str) -> float:
        """Share of the distinct shingles of `text` in the references, 0 to 1; 0 for a text without words."""
        words = _words(text)
        if len(words) < WORDS:
            return float(bool(words) and tuple(words) in self._short)
        names_W = np.fromiter(map(self._words.get, words, repeat(UNKNOWN)), dtype=np.int64, count=len(words))
        for shift, pairs in zip(SHIFTS, self._pairs, strict=True):
            names_W = _places(pairs, _keys(names_W, shift))
        shared = np.unique(names_W[names_W != UNKNOWN]).size
        if not shared:
            return 0.0
        return shared / len(set(zip(*(words[offset:] for offset in range(WORDS)), strict=False)))


def _words(text: str) -> list[str]:
    lowered = text.lower()
    if lowered.isascii():
        return lowered.translate(_ASCII_GAPS).split()  # the same words as below, in a third of the time
    return _WORD.findall(lowered)


def _keys(names_W: np.ndarray, shift: int) -> np.ndarray:
    """One number for each window and the one `shift` words after it; UNKNOWN where either is: int64 [W - shift]."""
    left, right = names_W[:-shift], names_W[shift:]
    return np.where((left != UNKNOWN) & (right != UNKNOWN), left << 32 | right, UNKNOWN)


def _places(pairs: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The place of each key in the sorted `pairs`, UNKNOWN for one that is not there: int64, shaped as `keys`."""
    names = np.full(len(keys), UNKNOWN, dtype=np.int64)
    if len(pairs):
        asked = np.flatnonzero(keys != UNKNOWN)
        places = np.searchsorted(pairs, keys[asked])
        places[places == len(pairs)] = 0
        there = pairs[places] == keys[asked]
        names[asked[there]] = places[there]
    return names
