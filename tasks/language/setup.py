"""The setup stage: the text of a study, from its source to packed blocks.

text/
  train.bin .json, validation.bin .json     packed blocks (tasks.language.blocks)
  <split>.parquet                           example_id, source, text of each evaluation split
  unigram.npy                               int64 [vocabulary]: how often each token occurs in train.bin
  tokenizer/                                as `save_pretrained` writes it
  proof.json                                what the splits hold and that they share nothing
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from storage import durable
from storage.errors import BadInput
from tasks.language import blocks, sources, tokenizer
from tasks.language.configuration import DocstringPairs, HubStream, PackageDocs
from tasks.language.document import Document
from tasks.language.pairs import SEPARATOR, beginning, docstring_pairs, pack_pairs, packed_split, parted
from tasks.language.result import SetupResult
from tasks.language.splits import EVALUATION_SPLITS, CutText, cut
from tasks.language.stages import PairsConfig, SetupConfig, TextConfig
from tasks.stage.run import StageRun

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PACKED_SPLITS = ("train", "validation")
PARTS = 4
REPORT_DOCUMENTS = 1000


def setup(run: StageRun, config: TextConfig) -> SetupResult:
    """Cuts, tokenizes and packs the text into `text/` of the run directory; returns the stage's result.

    `run` is the stage's run: directory, cache, publish, progress, stop, log. The result and every byte of
    `text/` are functions of the configuration and the text. Raises BadInput, and CheckFailed when the splits
    share anything.
    """
    skipped: Counter[str] = Counter()
    text = _cut(run, config, skipped)
    with run.publish("text") as folder:
        _write(run, config, text, folder)
    _begin(run, PARTS, "text published")
    return SetupResult(skipped_rows=dict(skipped))


def _cut(run: StageRun, config: TextConfig, skipped: Counter[str]) -> CutText:
    """The configured text in its splits. Counts rows left out."""
    held_out = sources.held_out_documents(config.text, run.cache, skipped)
    documents = sources.documents(config.text, run.cache, skipped)
    text = cut(
        docstring_pairs(documents) if isinstance(config.text, DocstringPairs) else documents,
        config.splits,
        held_out=held_out,
        max_characters=config.text.max_characters if isinstance(config.text, PackageDocs) else None,
        in_stream_order=isinstance(config.text, HubStream),
        compared=partial(beginning, characters=config.article_tokens) if isinstance(config, PairsConfig) else str,
        watch=lambda doing, documents: _watched(run, 0, doing, documents),
    )
    if text.proof.splits["test"].sources < 2:
        raise BadInput(
            f"the {config.splits.test_documents} test documents come from one source: an interval needs two. "
            "Raise splits.test_documents, or give more files"
        )
    counts = ", ".join(f"{name} {len(documents)}" for name, documents in text.documents.items())
    run.log.info("documents: %s", counts)
    return text


def _write(run: StageRun, config: TextConfig, text: CutText, folder: Path) -> None:
    """Writes all of `text/` into `folder`."""
    _begin(run, 1, "tokenizer")
    train = _watched(run, 1, "training the tokenizer", text.documents["train"])
    trained = tokenizer.load_tokenizer(
        config.tokenizer, (document.text.replace(SEPARATOR, "\n") for document in train), run.cache
    )
    tokenizer.save_tokenizer(trained, folder / "tokenizer")

    for name in PACKED_SPLITS:
        _pack(run, folder, name, text, trained, config)
    _write_counts(folder, len(trained))

    _begin(run, 3, "writing the evaluation splits")
    for name in EVALUATION_SPLITS:
        _write_documents(folder / f"{name}.parquet", text.documents[name])
    durable.write_json(folder / "proof.json", text.proof.as_json())


def _begin(run: StageRun, part: int, note: str) -> None:
    run.stop.check()
    run.progress.update(part, PARTS, "parts", note)


def _watched(run: StageRun, part: int, doing: str, documents: Iterable[Document]) -> Iterator[Document]:
    """The same documents; between them the run may be stopped, and its progress is reported."""
    for count, document in enumerate(documents):
        if count % REPORT_DOCUMENTS == 0:
            _begin(run, part, f"{doing}: {count} documents")
        yield document


def _pack(
    run: StageRun, folder: Path, name: str, text: CutText, trained: PreTrainedTokenizerBase, config: TextConfig
) -> None:
    texts = (document.text for document in _watched(run, 2, f"packing {name}", text.documents[name]))
    if isinstance(config, PairsConfig):
        pack_pairs(
            folder,
            name,
            tokenizer.encode_pairs(trained, map(parted, texts)),
            prefix=_prefix(config, trained),
            article_tokens=config.article_tokens,
            summary_tokens=config.summary_tokens,
            vocabulary_size=len(trained),
            end_of_text=trained.eos_token_id,
            padding=trained.eos_token_id if trained.pad_token_id is None else trained.pad_token_id,
        )
        return
    assert isinstance(config, SetupConfig)
    blocks.pack(
        folder,
        name,
        tokenizer.encode(trained, texts),
        sequence_length=config.sequence_length,
        vocabulary_size=len(trained),
        end_of_text=trained.eos_token_id,
    )


def _prefix(config: PairsConfig, trained: PreTrainedTokenizerBase) -> list[int]:
    """The tokens of the prefix; BadInput where beside them there is no room for what is attacked."""
    ids = next(tokenizer.encode(trained, [config.prefix])) if config.prefix else []
    if len(ids) + config.attacked_tokens > config.article_tokens - 1:
        raise BadInput(
            f"article_tokens {config.article_tokens} leaves {config.article_tokens - 1 - len(ids)} tokens beside the "
            f"prefix ({len(ids)} tokens) and the end, and attacks read {config.attacked_tokens} (trigger and "
            "text_tokens): raise article_tokens, or lower uat.text_tokens or hotflip.text_tokens"
        )
    return ids


def _write_counts(folder: Path, vocabulary_size: int) -> None:
    counts = packed_split(folder, "train").token_counts(vocabulary_size)
    with durable.new_file(folder / "unigram.npy") as temporary, temporary.open("wb") as file:
        np.save(file, counts)


def _write_documents(path: Path, documents: Sequence[Document]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "example_id": [document.example_id for document in documents],
        "source": [document.source for document in documents],
        "text": [document.text for document in documents],
    }
    schema = pa.schema([(name, pa.string()) for name in columns])
    with durable.new_file(path) as temporary:
        pq.write_table(pa.table(columns, schema=schema), temporary)
