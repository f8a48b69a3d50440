"""That what setup says of the text is what it left: documents, digests and packed tokens, counted again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from storage import durable
from storage.errors import require_equal
from tasks.language.blocks import Blocks
from tasks.language.result import SplitsProof, SplitSummary
from tasks.language.splits import EVALUATION_SPLITS
from tasks.robustness.results import SetupResult
from tasks.stage.run import StageInput


def require_text(said: SetupResult, given: StageInput) -> None:
    """Of the train documents only their tokens are kept: the rest is what the proof says that was written with them."""
    folder = given.path / "text"
    proof = SplitsProof.read_file(folder / "proof.json")
    for field in (
        "splits",
        "largest_shared_shingles",
        "duplicates_dropped_documents",
        "contaminated_dropped_documents",
    ):
        what = f"{field} in the result of setup is that in {folder / 'proof.json'}"
        require_equal(what, getattr(said, field), getattr(proof, field))
    for split in EVALUATION_SPLITS:
        file = folder / f"{split}.parquet"
        require_equal(f"the {split} split of setup is that in {file}", said.splits[split], _summary(file))
    for split, packed in said.packed.items():
        written = durable.read_json(folder / f"{split}.json")
        require_equal(f"the packed {split} split of setup is that in {folder}", packed.as_json(), written)
        blocks = Blocks(folder, split)  # BadInput where the file has another size than this
        held = len(blocks) * blocks.sequence_length
        require_equal(f"the packed {split} split has the tokens of {folder / split}.bin", packed.tokens, held)
    counts = np.load(folder / "unigram.npy")
    counted = (len(counts), int(counts.sum()))
    require_equal(
        "the counts of setup are of its tokens", counted, (said.vocabulary_tokens, said.packed["train"].tokens)
    )


def _summary(file: Path) -> SplitSummary:
    rows = pq.read_table(file).to_pylist()
    listed = "\n".join(sorted(row["example_id"] for row in rows))
    return SplitSummary(
        documents=len(rows),
        characters=sum(len(row["text"]) for row in rows),
        sources=len({row["source"] for row in rows}),
        digest=hashlib.sha256(listed.encode()).hexdigest(),
    )
