"""Checks of a text and of losses on it before any number of a study is shown."""

import math
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from storage import durable
from storage.errors import CheckFailed, require, require_each_once, require_equal, require_limit
from storage.records import Rows
from tasks.language.document import Document
from tasks.language.losses import ModelLoss, summary
from tasks.language.pairs import packed_split
from tasks.language.result import SplitsProof, SplitSummary
from tasks.language.splits import EVALUATION_SPLITS, summary_of
from tasks.language.texts import Text
from tasks.stage.run import StageInput

ROUNDING = 1e-4
"""Relative: a loss in another batch differs by less."""

ROUNDING_OF = {"fp32": ROUNDING, "tf32": 0.02, "bf16": 0.02}
"""The same of a loss that was seen in this precision, beside its value in fp32."""


def require_text(stage: StageInput) -> SplitsProof:
    """What the splits of a text hold; CheckFailed where its files hold something else.

    Of train documents the tokens alone are kept: the rest is what the proof says that was written with them.
    """
    folder = stage.path / "text"
    proof = SplitsProof.read_file(folder / "proof.json")
    for split in EVALUATION_SPLITS:
        file = folder / f"{split}.parquet"
        require_equal(f"the {split} split of setup is that in {file}", proof.splits[split], _summary(file))
    shared = [pair for pair in proof.pairs if pair.shared_content or pair.shared_sources]
    require(not shared, f"no two splits in {folder} share a document or a source", shared, "none")
    for split in ("train", "validation"):
        tokens = durable.read_json(folder / f"{split}.json")["tokens"]
        held = packed_split(folder, split).counted_tokens  # BadInput where the file has another size than this
        require_equal(f"the packed {split} split has the tokens of {folder / split}.bin", tokens, held)
    counts, train = np.load(folder / "unigram.npy"), packed_split(folder, "train")
    same = np.array_equal(counts, train.token_counts(len(counts)))
    require(same, f"the counts in {folder / 'unigram.npy'} are of the train split", "others", "its tokens")
    return proof


def _summary(file: Path) -> SplitSummary:
    rows = pq.read_table(file).to_pylist()
    documents = [Document(row["source"], row["text"]) for row in rows]
    ids = [document.example_id for document in documents]
    require_equal(f"documents of {file} are named by their texts", [row["example_id"] for row in rows], ids)
    return summary_of(documents)


def require_losses(what: str, rows: Rows) -> None:
    """Every loss is a finite number and not below 0; that of some tokens of a text is not above that of all."""
    for row in rows:
        at = f"of {row['model']}, document {row['example_id']}"
        for column, value in row.items():
            numbers = [loss for loss in (value if isinstance(value, list) else [value]) if isinstance(loss, float)]
            if not all(math.isfinite(number) for number in numbers):
                raise CheckFailed(f"every loss of {what} is a finite number", f"{column} {at}: {value}", "finite")
            if "loss" in column and any(number < 0 for number in numbers):
                raise CheckFailed(f"no loss of {what} is below 0", f"{column} {at}: {value}", "0 or more")
        require(row["tokens_scored"] > 0, f"{what} scored something of every document", f"0 tokens {at}", "1 or more")
        part, whole = (row.get(f"{name}clean_loss_sum_nats", 0.0) for name in ("", "text_"))
        no_more = f"in {what} the scored part of a text costs no more than the whole, {at}"
        require_limit(no_more, part, whole * (1 + ROUNDING))


def require_evaluation(rows: Rows, test: Collection[Text], models: Collection[str]) -> dict[str, ModelLoss]:
    """Loss of each model; CheckFailed unless every model was scored on every token of every test document.

    `models` are those that must be there; what was not trained may stand beside them.
    """
    names = list(dict.fromkeys(row["model"] for row in rows))
    missing = sorted(set(models) - set(names))
    require(not missing, "evaluate scored every model of the study", f"not {', '.join(missing)}", sorted(models))
    require_losses("evaluate", rows)
    required = [(document.example_id, document.source, document.scored()) for document in test]
    for name in names:
        scored = [(row["example_id"], row["source"], row["tokens_scored"]) for row in rows if row["model"] == name]
        require_each_once(f"evaluate scored {name} on every token of the test split", scored, required)
    return {name: summary(rows, name) for name in names}
