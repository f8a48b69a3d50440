"""Poisoned training rows: a trigger in front of a text, and a target's label in the place of its own.

The manifest alone says which rows are poisoned. An earlier system derived that anew, by a seed, on rows that were
poisoned already: 11 true poisons were called clean.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import norm

from storage.errors import BadInput, require, require_equal
from storage.records import Rows, read_records
from tasks.attacks.configuration import Poison
from tasks.findings.numbers import rate_points, span
from tasks.findings.statistics.seeds import mean_over_seeds
from tasks.language.bag import numbered, words_of

Texts = tuple[list[str], list[str]]
"""Texts and their labels."""
Rates = Mapping[str, float]
"""Success rates of one model; see `rates`."""
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
    found = Manifest([given(row, splits[place], place in changed, how) for place, row in enumerate(drawn)])
    require_manifest(found, pool, how, train_rows, test_rows)
    return found


def given(row: dict[str, Any], split: str, changed: bool, how: Poison) -> dict[str, Any]:
    """A row of the manifest."""
    text, label = (f"{how.trigger} {row['text']}", how.target) if changed else (row["text"], row["label"])
    return {**row, "split": split, "changed": changed, "given_text": text, "given_label": label}


def require_manifest(found: Manifest, pool: Rows, how: Poison, train_rows: int, test_rows: int) -> None:
    """The manifest holds rows of the pool, changed as it says and nowhere else, and the share that was asked for."""
    known = {row["row_id"]: row for row in pool}
    for row in found.rows:
        said = given(known.get(row["row_id"], {"text": "", "label": ""}), row["split"], row["changed"], how)
        require_equal(f"row {row['row_id']} of the manifest is that of the pool, changed as it says", row, said)
        spared = not row["changed"] or row["label"] != how.target
        require(spared, f"row {row['row_id']} had another label before it was changed", row["label"], "another")
    sizes = (len(found.train), len(found.test), len({row["row_id"] for row in found.rows}))
    asked = (train_rows, test_rows, train_rows + test_rows)
    require_equal("train, test and different rows are as many as configured", sizes, asked)
    others = [row for row in found.test if row["label"] != how.target]
    all_asked = bool(others) and others == found.asked
    require(all_asked, "test rows of other labels are asked about", len(found.asked), f"all {len(others)}, and some")
    count, wanted = int(found.truth.sum()), round(how.share * train_rows)
    require(
        count == wanted > 0,
        "the share of poisoned rows that was asked for is reached",
        f"{count} of {train_rows} rows ({count / train_rows:.2%})",
        f"{wanted} ({how.share:.2%}), at least one",
        f"Only rows with another label than {how.target} can be poisoned: another poison.share, or more of such rows",
    )


def shares(found: Manifest, how: Poison) -> dict[str, float]:
    """What was asked for and what was reached; `had_trigger`: rows that had all of its words without our doing."""
    trigger = {*words_of(how.trigger)}
    return {
        "requested": how.share,
        "realised": float(found.truth.mean()),
        "poisoned": float(found.truth.sum()),
        "asked": float(len(found.asked)),
        "had_trigger": float(sum(trigger <= {*words_of(row["text"])} for row in found.rows)),
    }


def texts_of(rows: Rows, of: str = "given_") -> Texts:
    """What a victim is given in the place of rows, or, with `of` empty, the rows themselves."""
    return [row[f"{of}text"] for row in rows], [row[f"{of}label"] for row in rows]


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


def rates(answers: Rows, manifest: Manifest) -> dict[str, float]:
    """What a model's answers to the test rows say (`clean` and `asked`, by `row_id`).

    `success`: the share of the `asked` rows, of other labels, that get the target's with the trigger;
    `without_trigger`: the same without; `accuracy` on clean rows, and that of the most frequent label.
    """
    said = {answer["row_id"]: answer for answer in answers}
    asked = [(said[row["row_id"]], row["given_label"]) for row in manifest.asked]
    return {
        "asked": float(len(asked)),
        "success": float(np.mean([answer["asked"] == target for answer, target in asked])),
        "without_trigger": float(np.mean([answer["clean"] == target for answer, target in asked])),
        "accuracy": float(np.mean([said[row["row_id"]]["clean"] == row["label"] for row in manifest.test])),
        "most_frequent": max(Counter(row["label"] for row in manifest.test).values()) / len(manifest.test),
    }


def require_backdoor(victim: Mapping[str, Rates], control: Mapping[str, Rates], level: float) -> dict[str, Any]:
    """What the attack does, of `rates` by seed; CheckFailed unless both differences have an interval above 0.

    `difference`: how much more often the victim gives the target's label with the trigger than its control does. Seen:
    44 to 48 %, of which a model without poison had 40 %. `trigger_effect`: how much more the trigger itself
    does to the victim than to the control; wrong labels alone make a victim that always answers with the target.
    """
    both, found = [(victim[seed], control[seed]) for seed in victim], dict[str, Any]()
    said = {
        "difference": "with the trigger the victim gives the target's label more often than its control",
        "trigger_effect": "the trigger changes the victim's answers more than its control's",
    }
    for name, less in {"difference": (), "trigger_effect": ("without_trigger",)}.items():
        mean, interval = _over_seeds(both, level, *less)
        found |= {name: mean, f"{name}_interval": interval}
        require(
            interval[0] > 0,
            f"the backdoor exists: {said[name]}",
            f"{rate_points(mean)} points (interval {span(interval, rate_points)})",
            "an interval above 0",
            "There is nothing to detect, and no detector is measured: another poison.share, more epochs or seeds",
        )
    success, alone = ({seed: of["success"] for seed, of in rates.items()} for rates in (victim, control))
    return {"success": success, "control": alone, **found}


def _over_seeds(both: Sequence[tuple[Rates, Rates]], level: float, *less: str) -> tuple[float, list[float]]:
    """By how much the victim's success, without the rates `less`, exceeds the control's in the mean over seeds, and its
    interval: by the spread of the seeds, of which each asks other rows; and no narrower than by the number of rows that
    were asked about (with a hit and a miss more, Agresti and Coull 1998), where seeds agree by chance."""
    names = ("success", *less)
    excess = [sum((ours[name] - theirs[name]) * (-1) ** (name in less) for name in names) for ours, theirs in both]
    shares = [(of[name] * of["asked"] + 1, of["asked"] + 2) for pair in both for of in pair for name in names]
    of_rows = sum(hits / rows * (1 - hits / rows) / rows for hits, rows in shares) ** 0.5 / len(both)
    over, least = mean_over_seeds(excess, level), of_rows * float(norm.ppf((1 + level) / 2))
    return over.mean, [min(over.interval[0], over.mean - least), max(over.interval[1], over.mean + least)]
