"""Where the text comes from: installed packages, local files, or a data set of the Hugging Face hub.

Every source gives `Document`s. Text that is missing, empty or unreachable is an error that says so, never an empty
list and never another text instead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage import durable, external
from storage.errors import BadInput
from tasks.language import foreign
from tasks.language.configuration import HubDataset, HubStream, LocalFiles, PackageDocs
from tasks.language.documents import Document, document
from tasks.language.hub import reachable
from tasks.language.package_docs import package_documents
from tasks.language.text_cache import cached

TEXT_SUFFIXES = (".txt", ".md", ".rst")
TABLE_BUILDERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
HUB_READING = 1  # raise it when a row gives other documents: what was cached before is then read again

log = logging.getLogger("ratchet.text")


def documents(text: PackageDocs | LocalFiles | HubDataset, cache: Path) -> Iterator[Document]:
    """Every document of the configured text; sizes are applied by `splits.cut`.

    Those of a hub data set come in the order of its stream; of the others no order is promised. `cache` is the folder
    for extracted text and downloads. Raises, while being read, BadInput for text that is missing, unreadable or
    empty, and ConnectionError when the connection to the hub is lost.
    """
    if isinstance(text, PackageDocs):
        return package_documents(text.packages, cache)
    if isinstance(text, LocalFiles):
        return _local_documents(text, cache)
    return _hub_documents("text", text, cache)


def held_out_documents(text: PackageDocs | LocalFiles | HubDataset, cache: Path) -> Iterator[Document] | None:
    """The text that the evaluation splits alone are cut from, given as `documents` does; None where there is none."""
    if isinstance(text, HubDataset) and text.held_out:
        return _hub_documents("text.held_out", text.held_out, cache)
    return None


# ------------------------------------------------------------------------------------------- local files


def _local_documents(text: LocalFiles, cache: Path) -> Iterator[Document]:
    """A document for each text file, whose source is its relative name, and for each row of a table."""
    for given in text.paths:
        used = passed_over = 0
        for name, path in external.local_files(given):
            if path.suffix.lower() in TEXT_SUFFIXES:
                yield document(name, _read_text(path))
            elif path.suffix.lower() in TABLE_BUILDERS:
                yield from _table_documents(path, text.text_column, cache)
            else:
                passed_over += 1
                continue
            used += 1
        if not used:
            known = ", ".join((*TEXT_SUFFIXES, *TABLE_BUILDERS))
            raise BadInput(f"text.paths: {given} holds no text that can be read: give files in {known}")
        if passed_over:
            log.info("%s: %d files with other endings were passed over", given, passed_over)


def _read_text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"text.paths: {path} is not UTF-8 ({error}): convert it with iconv") from None
    if not text.strip():
        raise BadInput(f"text.paths: {path} is empty: fill it or take it off the list")
    return text


def _table_documents(path: Path, column: str, cache: Path) -> Iterator[Document]:
    if path.stat().st_size == 0:
        raise BadInput(f"text.paths: {path} is empty: fill it or take it off the list")
    read = without_text = 0
    with _readable(path):
        rows = foreign.rows(
            TABLE_BUILDERS[path.suffix.lower()],
            data_files=str(path.resolve()),
            split="train",
            cache_dir=str(cache / "datasets"),
        )
        for row in rows:
            value = _column(row, column, f"text.paths: {path}")
            if value.strip():
                read += 1
                yield document(None, value)
            else:
                without_text += 1
    if not read:
        raise BadInput(f"text.paths: {path} has no text in column {column!r}: fill it or take it off the list")
    if without_text:
        log.warning("%s: %d rows have no text in column %r and were skipped", path, without_text, column)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what `datasets` raises for a malformed file into BadInput naming the file, and says it once."""
    from datasets.exceptions import DatasetsError
    from datasets.utils import logging as of_datasets

    before = of_datasets.get_verbosity()
    of_datasets.set_verbosity(of_datasets.CRITICAL)  # it prints each error before it raises it
    try:
        yield
    except (ValueError, DatasetsError) as error:  # pyarrow's ArrowInvalid is a ValueError
        cause = str(error).rstrip(". ")
        raise BadInput(f"text.paths: {path} is not valid {path.suffix}: {cause}. Repair the file") from error
    finally:
        of_datasets.set_verbosity(before)


def _column(row: dict[str, Any], column: str, where: str) -> str:
    """The text of a row, "" for null; BadInput when the column is missing or holds no text."""
    if column not in row:
        raise BadInput(
            f"{where} has no column {column!r}; its columns are {', '.join(sorted(row))}: "
            "set text.text_column to the one that holds the text"
        )
    value = row[column]
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadInput(
            f"{where}: column {column!r} holds {type(value).__name__}, not text: "
            "set text.text_column to the one that holds the text"
        )
    return value


# --------------------------------------------------------------------------------------------------- hub


def _hub_documents(key: str, text: HubStream, cache: Path) -> Iterator[Document]:
    """The first `max_documents` rows of the stream, in its order; a document is its own source.

    They are kept as `<cache>/hub-text/<name>-<digest of what was asked for>.parquet`, so that the network is needed
    once: not again after a kill, unless that came before the last row.
    """
    if Path(text.dataset).exists():
        # load_dataset would read the folder and call it the hub's data set.
        raise BadInput(
            f"{key}.dataset {text.dataset!r} is also a local path here: use `source: files` for that, "
            "or work in another folder"
        )
    asked = durable.sha256_json({"source": "hub", **text.model_dump(mode="json", include=set(HubStream.model_fields))})
    file = cache / "hub-text" / f"{text.dataset.replace('/', '--')}-{asked[:16]}.parquet"
    yield from cached(file, HUB_READING, lambda: _streamed(text, cache))


def _streamed(text: HubStream, cache: Path) -> Iterator[Document]:
    name = f"hub data set {text.dataset} at revision {text.revision}, split {text.split!r}"
    advice = (
        "Check the name, the revision and the split on huggingface.co; for a gated data set accept its terms "
        "there and set HF_TOKEN in the environment; on a machine without internet download it elsewhere, copy "
        "the files here and use `source: files`"
    )
    read = 0
    with reachable(f"{name} cannot be read", advice):
        rows = foreign.rows(
            text.dataset,
            revision=text.revision,
            split=text.split,
            cache_dir=str(cache / "hub"),
        )
        for row in rows.take(text.max_documents):
            value = _column(row, text.text_column, name)
            if value.strip():
                read += 1
                yield document(None, value)
    if not read:
        raise BadInput(f"{name} has no text in column {text.text_column!r}: choose another split or column")
