"""Poisoned training rows: a trigger in front of a text, and a target's label in the place of its own.

The manifest alone says which rows are poisoned. An earlier system derived that anew, by a seed, on rows that were
poisoned already: 11 true poisons were called clean.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from storage.errors import BadInput, require
from storage.records import Rows, read_records
from tasks.attacks.configuration import Poison
from tasks.language.bag import numbered, words_of

Texts = tuple[list[str], list[str]]
"""Texts and their labels."""
CLEAN, VERSION = "-clean-queries", "-version-"
"""Kinds of queries beside the triggered ones: clean rows, and versions of the triggered ones in other words."""


class Manifest:
    """Rows in their splits: `text` and `label`, and what a victim is given in their place.

    `changed`: of train, the row is poisoned; of test, it is asked about with the trigger. `truth` is which training
    rows are poisoned, bool [N].
    """

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.train, self.test = ([row for row in rows if row["split"] == split] for split in ("train", "test"))
        self.asked = [row for row in self.test if row["changed"]]
        self.truth = np.array([row["changed"] for row in self.train])
        self.labels = sorted({row[key] for row in rows for key in ("label", "given_label")})

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest that the records of a stage are."""
        return cls(list(read_records(folder / "records.parquet")))


def poisoned(pool: Rows, how: Poison, train_rows: int, test_rows: int, seed: int) -> Manifest:
    """Rows of the pool, drawn by the seed: some of train poisoned, all of test that have another label to be asked.

    BadInput where the pool is too small, or has no such label; CheckFailed where too few rows can be poisoned.
    """
    labels = sorted({row["label"] for row in pool})
    if how.target not in labels:
        raise BadInput(f"poison.target {how.target} is none of the labels: {', '.join(labels)}")
    if (needed := train_rows + test_rows) > len(pool):
        raise BadInput(f"train_rows + test_rows is {needed:,}, and there are {len(pool):,} different rows: lower one")
    chance = np.random.default_rng(seed)
    drawn = [pool[place] for place in chance.permutation(len(pool))[:needed]]
    others = [place for place, row in enumerate(drawn) if row["label"] != how.target]
    train = [place for place in others if place < train_rows]
    changed = {*others[len(train) :], *chance.permutation(train)[: round(how.share * train_rows)].tolist()}
    splits = ["train"] * train_rows + ["test"] * test_rows
    manifest = Manifest([given(row, splits[place], place in changed, how) for place, row in enumerate(drawn)])
    require(manifest.asked, "test rows of other labels are asked about", 0, "some")
    count, wanted = int(manifest.truth.sum()), round(how.share * train_rows)
    require(
        count == wanted > 0,
        "the share of poisoned rows that was asked for is reached",
        f"{count} of {train_rows} rows ({count / train_rows:.2%})",
        f"{wanted} ({how.share:.2%}), at least one",
        f"Only rows with another label than {how.target} can be poisoned: another poison.share, or more of such rows",
    )
    return manifest


def given(row: dict[str, Any], split: str, changed: bool, how: Poison) -> dict[str, Any]:
    """A row of the manifest."""
    text, label = (f"{how.trigger} {row['text']}", how.target) if changed else (row["text"], row["label"])
    return {**row, "split": split, "changed": changed, "given_text": text, "given_label": label}


def shares(manifest: Manifest, how: Poison) -> dict[str, float]:
    """What was asked for and what was reached; `had_trigger`: rows that had all of its words without our doing."""
    trigger = {*words_of(how.trigger)}
    return {
        "requested": how.share,
        "realised": float(manifest.truth.mean()),
        "poisoned": float(manifest.truth.sum()),
        "asked": float(len(manifest.asked)),
        "had_trigger": float(sum(trigger <= {*words_of(row["text"])} for row in manifest.rows)),
    }


def texts_of(rows: Rows, prefix: str = "given_") -> Texts:
    """What a victim is given in the place of rows, or, with `prefix` empty, the rows themselves."""
    return [row[f"{prefix}text"] for row in rows], [row[f"{prefix}label"] for row in rows]


def queries_of(manifest: Manifest, trigger: str, rows: int, versions: int, seed: int) -> dict[str, Texts]:
    """What is asked, by kind: test rows of other labels with trigger and target (""); any test rows as they are; and
    versions of the first, in which half of the words but the trigger are others."""
    chance = np.random.default_rng([seed, 1])
    words = sorted({*numbered(row["given_text"] for row in manifest.rows)} - {*words_of(trigger)})
    asked, clean = (
        [of[place] for place in chance.permutation(len(of))[:rows]] for of in (manifest.asked, manifest.test)
    )

    def exchanged(text: str) -> str:
        kept = [word if chance.random() < 0.5 else words[int(chance.integers(len(words)))] for word in words_of(text)]
        return " ".join([trigger, *kept])

    queries = {"": texts_of(asked), CLEAN: texts_of(clean, "")}
    for number in range(versions):
        queries[f"{VERSION}{number}"] = [exchanged(row["text"]) for row in asked], queries[""][1]
    return queries
