"""The share of a text that stands in others, in words that are the same, not in hashes that are."""

import re
import tracemalloc

import pytest

from tasks.language import splits as module
from tasks.language.splits import Overlap

WORDS = [f"word{n}" for n in range(60)]


def test_share_of_shingles():
    words = WORDS[:40]
    overlap = Overlap([" ".join(words[:26]), "just three words"])
    assert overlap.share(" ".join(words[:26])) == 1.0
    assert overlap.share(" ".join(words)) == pytest.approx(14 / 28)
    assert overlap.share(" ".join(reversed(words))) == 0.0
    assert overlap.share("Just, THREE words!") == 1.0
    assert overlap.share("words three just") == 0.0
    assert overlap.share("?!") == 0.0


def test_a_shingle_that_comes_twice_counts_once():
    planted, others = " ".join(WORDS[:13]), " ".join(WORDS[20:40])
    once, twice = f"{planted} {others}", f"{planted} {others} {planted} {others}"
    overlap = Overlap([planted])
    assert overlap.share(once) == 1 / 21
    assert overlap.share(twice) == 1 / 33  # 20 more windows lead from the others back to the planted words


def test_no_window_goes_from_one_reference_into_the_next():
    assert Overlap([" ".join(WORDS[:20]), " ".join(WORDS[20:40])]).share(" ".join(WORDS[10:30])) == 0.0


def test_one_other_word_anywhere_is_another_shingle():
    overlap = Overlap([" ".join(WORDS)])
    for at in range(13):
        words = WORDS[5:18]
        assert overlap.share(" ".join(words)) == 1.0
        words[at] = WORDS[40]
        assert overlap.share(" ".join(words)) == 0.0


def test_there_may_be_no_references_or_short_ones_alone():
    assert Overlap([]).share(" ".join(WORDS)) == 0.0
    assert Overlap(["few words", "!"]).share(" ".join(WORDS)) == 0.0
    assert Overlap(["few words", "!"]).share("!") == 0.0


def test_words_of_ascii_text_are_those_of_any_text():
    text = "".join(map(chr, range(128))) + "Some_words, and 3 more: it's-what IS"
    assert module._words(text) == re.findall(r"\w+", text.lower())
    assert module._words(text + " É") == [*re.findall(r"\w+", text.lower()), "é"]


def test_memory_does_not_grow_with_the_texts_that_are_compared():
    overlap = Overlap([" ".join(WORDS)])
    tracemalloc.start()
    try:
        for n in range(200):
            overlap.share(" ".join(f"new{n}x{m}" for m in range(50)))
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, module.__file__)])
        assert sum(trace.size for trace in ours.traces) < 10_000  # other threads of this process allocate too
    finally:
        tracemalloc.stop()
