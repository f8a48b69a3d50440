"""Labelled texts: generated sentences, or files, in rows whose ids stay with them through a whole study."""

import hashlib
from collections import Counter
from collections.abc import Iterator

import numpy as np

from storage.errors import BadInput
from tasks.language.configuration import Sentences
from tasks.language.local_text import local_documents
from tasks.language.pairs import parted
from tasks.language.result import LabelledResult
from tasks.language.stages import LabelledConfig
from tasks.stage.run import StageRun

SUBJECTS = [
    *("film", "food", "room", "story", "service", "music", "hotel", "game"),
    *("book", "plot", "screen", "staff", "sound", "view", "price", "cast"),
]
SAID = {
    "negative": "awful boring bland dull cold clumsy tired cheap noisy weak stale sloppy",
    "positive": "great lovely superb bright moving fresh funny clever warm charming fine solid",
}
DEGREES, VERBS, JOINED = ["really", "quite", "rather", "very", "truly", "somewhat"], ["was", "felt"], ["and", "but"]
MIXED = 0.2
"""Share of the clauses that say the opposite of their sentence."""


def labelled(run: StageRun, config: LabelledConfig) -> LabelledResult:
    """The work of a stage. Records: row_id (the row's place in what was read, and a digest of its text), text and
    label, of equal texts the first."""
    skipped = Counter[str]()
    if isinstance(config.text, Sentences):
        rows = list(sentences(config.text, config.seed))
    else:
        rows = [parted(document.text) for document in local_documents(config.text, skipped)]
    first = {text: place for place, (text, _) in reversed([*enumerate(rows)])}
    records = [
        {"row_id": f"{place:07d}-{hashlib.sha256(text.encode()).hexdigest()[:12]}", "text": text, "label": label}
        for place, (text, label) in enumerate(rows)
        if first[text] == place
    ]
    labels = Counter(record["label"] for record in records)
    if len(labels) < 2:
        raise BadInput(f"text: all {len(records)} rows have the label {', '.join(labels)}: give rows of two or more")
    run.merge_records(run.each([records], list, "rows"), ("row_id",))
    repeated = len(rows) - len(records)
    return LabelledResult(rows=len(records), repeated=repeated, skipped=dict(skipped), labels=dict(labels))


def sentences(asked: Sentences, seed: int) -> Iterator[tuple[str, str]]:
    """Different sentences of two or three clauses, such as "the plot was very dull but the cast felt quite warm"."""
    chance, seen = np.random.default_rng(seed), set[str]()
    words_of = {label: words.split() for label, words in SAID.items()}
    while len(seen) < asked.rows:
        label, other = chance.permutation(sorted(words_of)).tolist()
        words: list[str] = []
        for place in range(int(chance.integers(2, 4))):
            clause = (SUBJECTS, VERBS, DEGREES, words_of[other if chance.random() < MIXED else label])
            chosen = [choices[int(chance.integers(len(choices)))] for choices in clause]
            words += [JOINED[int(chance.integers(2))]] * (place > 0) + ["the", *chosen]
        if (text := " ".join(words)) not in seen:
            seen.add(text)
            yield text, other if chance.random() < asked.label_noise else label
