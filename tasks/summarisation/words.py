"""What ROUGE counts, in any script: words of letters, digits and their marks; and sentences, parted by one rule on both
sides.

A word of ASCII is stemmed as rouge-score does it, by Porter's rules for English; others count as they are written.
Scripts that leave no space between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese) count by character.
"""

import functools
import unicodedata
from collections.abc import Sequence
from typing import Any

import regex

METRICS = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
ALONE = r"(?:(?=[\p{L}\p{N}])[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}])"
UNSPACED = regex.compile(ALONE)
WORD = regex.compile(rf"{ALONE}\p{{M}}*|(?:(?!{ALONE})[\p{{L}}\p{{N}}])(?:(?!{ALONE})[\p{{L}}\p{{M}}\p{{N}}])*")
SENTENCE_END = regex.compile(
    r"(?<=[.!?…؟।॥]['\"”’»)\]]*)(?<!(?:^|[\s.(])\p{L}\.)(?<!\b(?:Mrs?|Ms|Dr|St|vs)\.)\s+|(?<=[。！？]['\"”’»）」』]*)|\n+",
    regex.IGNORECASE,
)
"""After a mark that ends a sentence, with a space where the script has one; not after an initial, `e.g.` or a title."""


def words(text: str) -> list[str]:
    """The words of a text as ROUGE compares them."""
    stem = _stemmer().stem
    matches = WORD.findall(unicodedata.normalize("NFC", text.lower()))
    return [stem(word) if word.isascii() and len(word) > 3 else word for word in matches]


def sentences(text: str) -> list[str]:
    """The sentences of a text; a line that ends, ends one."""
    return [part for part in SENTENCE_END.split(text) if part.strip()]


def pieces(text: str) -> list[str]:
    """What stands between spaces; of a text that is mostly in scripts without them, its words."""
    matches = WORD.findall(text)
    return matches if 2 * sum(map(bool, map(UNSPACED.match, matches))) > len(matches) else text.split()


def lead_words(summaries: Sequence[str]) -> int:
    """Words that a summary has on average, which are taken from the beginning of an article in its place."""
    return max(1, round(sum(len(pieces(summary)) for summary in summaries) / len(summaries)))


@functools.cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer()
