"""A cache of text that took long to get: Parquet files, used again only when they are whole."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from storage import durable
from tasks.language.documents import Document

COLUMNS = ("source", "text")
ROW_GROUP_DOCUMENTS = 500  # so many are held in memory, whatever the number in the file
ABANDONED_SECONDS = 24 * 3600

log = logging.getLogger("ratchet.text")


def cached(cache_file: Path, version: int, get: Callable[[], Iterable[Document]]) -> Iterator[Document]:
    """The documents of `cache_file`; where there is none, or a damaged one, those of `get()`, which are kept.

    They are kept once the last of them is taken: a reader that ends before leaves no file. `version` is raised when
    `get` changes, and what was kept before is then got again. Memory holds a few hundred documents, and a file is
    read twice: its digest is compared before its first document is given.
    """
    import pyarrow as pa

    if cache_file.exists():
        try:
            _require_digest(cache_file, version)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:  # raised by pyarrow for damaged files
            log.warning("%s is damaged or of another version, made again: %s", cache_file, error)
        else:
            yield from _read(cache_file)
            return
    cache_file.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(cache_file.parent)
    yield from _kept(cache_file, version, get())


def _kept(cache_file: Path, version: int, documents: Iterable[Document]) -> Iterator[Document]:
    """The same documents, written on the way."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    digest, remaining = _begun(version), iter(documents)
    schema = pa.schema([(name, pa.string()) for name in COLUMNS])
    with durable.new_file(cache_file) as temporary, pq.ParquetWriter(temporary, schema) as writer:
        while group := list(islice(remaining, ROW_GROUP_DOCUMENTS)):
            for document in group:
                _add(digest, document)
            columns = {name: [getattr(document, name) for document in group] for name in COLUMNS}
            writer.write_table(pa.table(columns, schema=schema))
            yield from group
        writer.add_key_value_metadata({"digest": digest.hexdigest()})


def _read(cache_file: Path) -> Iterator[Document]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(cache_file) as file:
        for batch in file.iter_batches(ROW_GROUP_DOCUMENTS, columns=list(COLUMNS)):
            columns = (batch.column(name).to_pylist() for name in COLUMNS)
            yield from (Document(source, text) for source, text in zip(*columns, strict=True))


def _require_digest(cache_file: Path, version: int) -> None:
    import pyarrow.parquet as pq

    digest = _begun(version)
    for document in _read(cache_file):
        _add(digest, document)
    with pq.ParquetFile(cache_file) as file:
        written = (file.metadata.metadata or {}).get(b"digest", b"").decode()
    if written != digest.hexdigest():
        raise ValueError("its digest is not that of its rows")


def _begun(version: int) -> hashlib._Hash:
    return hashlib.sha256(durable.canonical_json(version))


def _add(digest: hashlib._Hash, document: Document) -> None:
    digest.update(durable.canonical_json([document.source, document.text]))


def _remove_abandoned(folder: Path) -> None:
    """Removes what killed processes left half written. Others may be writing here: theirs is younger than a day."""
    for leftover in folder.glob(durable.TEMPORARY_PREFIX + "*"):
        with suppress(FileNotFoundError):  # another process removed it, or finished it
            if time.time() - leftover.stat().st_mtime > ABANDONED_SECONDS:
                leftover.unlink()
