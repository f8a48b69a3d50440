"""Sources of the text: installed packages, local files, or a data set of the Hugging Face hub.

Every source gives `Document`s. Text that is missing, empty or unreachable is an error that says so, never an empty
list and never another text instead.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage import durable
from storage.errors import BadInput
from tasks.language import foreign
from tasks.language.configuration import HubDataset, HubStream, LocalFiles, PackageDocs, PairDataset, columns_of
from tasks.language.documents import Document, document
from tasks.language.hub import reachable, require_hub_name
from tasks.language.local_text import local_documents
from tasks.language.package_docs import package_documents
from tasks.language.pairs import joined
from tasks.language.text_cache import cached

log = logging.getLogger("ratchet.text")
HUB_READING = 1  # raise it when a row gives other documents: what was cached before is then read again


def documents(
    text: PackageDocs | LocalFiles | HubStream, cache: Path, skipped: Counter[str] | None = None
) -> Iterator[Document]:
    """Every document of the configured text; sizes are applied by `splits.cut`.

    Those of a hub data set come in the order of its stream; no order is promised for the others. `cache` is the folder
    for extracted text and downloads; `skipped` counts by file the rows that `skip_bad_rows` leaves out, and by data set
    those that are no pair. Raises, while being read, BadInput for text that is missing, unreadable or empty, and
    ConnectionError when the connection to the hub is lost.
    """
    if isinstance(text, PackageDocs):
        return package_documents(text.packages, cache)
    if isinstance(text, LocalFiles):
        return local_documents(text, Counter() if skipped is None else skipped)
    return _hub_documents("text", text, cache, skipped)


def held_out_documents(
    text: PackageDocs | LocalFiles | HubStream, cache: Path, skipped: Counter[str] | None = None
) -> Iterator[Document] | None:
    """The text that the evaluation splits alone are cut from, given as `documents` does; None where there is none."""
    if isinstance(text, HubDataset) and text.held_out:
        return _hub_documents("text.held_out", text.held_out, cache, skipped)
    if isinstance(text, PairDataset) and text.held_out_split:
        return _hub_documents("text", text.model_copy(update={"split": text.held_out_split}), cache, skipped)
    return None


# --------------------------------------------------------------------------------------------------- hub


def _hub_documents(key: str, text: HubStream, cache: Path, skipped: Counter[str] | None) -> Iterator[Document]:
    """The first `max_documents` rows of the stream, in its order; a document is its own source. Counts what is no pair.

    They are kept as `<cache>/hub-text/<name>-<digest of what was asked for>.parquet`, so that the network is needed
    once: not again after a kill, unless that came before the last row.
    """
    require_hub_name(text.dataset)
    if Path(text.dataset).exists():
        # load_dataset would read the folder and call it the hub's data set.
        raise BadInput(
            f"{key}.dataset {text.dataset!r} is also a local path here: use `source: files` for that, "
            "or work in another folder"
        )
    described = text.model_dump(mode="json", include={*HubStream.model_fields, "summary_column"}, exclude_none=True)
    asked, others = durable.sha256_json({"source": "hub", **described}), len(columns_of(text)) - 1
    file = cache / "hub-text" / f"{text.dataset.replace('/', '--')}-{asked[:16]}.parquet"
    skipped = Counter() if skipped is None else skipped
    for one in cached(file, HUB_READING + others, lambda: _streamed(text, cache)):
        if one.text:
            yield one
        else:
            skipped[text.dataset] += 1
    if skipped[text.dataset]:
        log.warning("%s.dataset %s: %d rows are no pair and were left out", key, text.dataset, skipped[text.dataset])


def _streamed(text: HubStream, cache: Path) -> Iterator[Document]:
    """Its rows that have text; of pairs every row, without text where it is no pair, so that what is kept tells it."""
    name = f"hub data set {text.dataset} at revision {text.revision}, split {text.split!r}"
    advice = (
        "Check the name, the revision, the configuration and the split on huggingface.co; for a gated data set accept "
        "its terms there and set HF_TOKEN in the environment; on a machine without internet download it elsewhere, "
        "copy the files here and use `source: files`"
    )
    read = 0
    with reachable(f"{name} cannot be read", advice):
        rows = foreign.rows(
            text.dataset,
            name=text.configuration,
            revision=text.revision,
            split=text.split,
            cache_dir=str(cache / "hub"),
        )
        for number, row in enumerate(rows.take(text.max_documents), 1):
            values = [_column(row, column, name, number) for column in columns_of(text)]
            value = ""
            with suppress(ValueError):
                value = joined(*values) if values[1:] else values[0]
            read += bool(value.strip())
            if value.strip() or values[1:]:
                yield document(None, value)
    columns = " and ".join(map(repr, columns_of(text)))
    if not read:
        raise BadInput(f"{name} has no text in column {columns}: choose another split or column")


def _column(row: dict[str, Any], column: str, where: str, number: int) -> str:
    """The text of a row, "" for null; BadInput when the column is missing or holds no text."""
    if column not in row:
        raise BadInput(
            f"{where} has no column {column!r}; its columns are {', '.join(sorted(row))}: "
            "set text_column to the one that holds the text"
        )
    value = row[column]
    if value is not None and not isinstance(value, str):
        raise BadInput(
            f"{where}, row {number}: column {column!r} holds {type(value).__name__}, not text: "
            "set text_column to the one that holds the text"
        )
    return value or ""
