"""Documents on the disk, for as long as a stage works on them: any order can be read, and memory hardly grows."""

from __future__ import annotations

import hashlib
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, overload

import numpy as np

from storage import durable


@dataclass(frozen=True)
class Document:
    """One text and where it comes from; everything with the same source falls into the same split."""

    source: str
    text: str

    @property
    def example_id(self) -> str:
        """sha256 of the UTF-8 text, in hexadecimal: names the example in every record."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def document(source: str | None, text: str) -> Document:
    """A document whose text can be written as UTF-8; without a source it is its own source, by its content.

    Lone surrogates, which Python and JSON escapes can spell and UTF-8 cannot, become question marks.
    """
    text = text.encode("utf-8", "replace").decode()
    return Document(hashlib.sha256(text.encode()).hexdigest() if source is None else source, text)


@contextmanager
def document_store(folder: Path) -> Iterator[DocumentStore]:
    """An empty store for the length of the block, in a file without a name below `folder`.

    However the process ends, nothing is left there: it is the system that removes the file.
    """
    with tempfile.TemporaryFile(dir=folder) as file:
        yield DocumentStore(file, folder)


class DocumentStore:
    """Documents end to end in `file`; in memory is only where each begins and ends, 16 bytes.

    Raises OSError naming `folder` when its disk is full.
    """

    def __init__(self, file: BinaryIO, folder: Path) -> None:
        self._file, self._folder = file, folder
        self._ends = array("Q")  # the source's, then the text's, of one document after the other

    def __len__(self) -> int:
        return len(self._ends) // 2

    def add(self, document: Document) -> None:
        """Appends a document; all are added before the first is read."""
        try:
            for part in (document.source, document.text):
                data = part.encode()
                self._file.write(data)
                self._ends.append((self._ends[-1] if self._ends else 0) + len(data))
        except OSError as error:
            if full := durable.disk_full(error, self._folder):
                raise full from error
            raise

    def read(self, place: int) -> Document:
        """The document that was added as number `place`, from 0."""
        begin, middle, end = (self._ends[at] if at >= 0 else 0 for at in range(2 * place - 1, 2 * place + 2))
        self._file.seek(begin)
        data = self._file.read(end - begin)
        return Document(data[: middle - begin].decode(), data[middle - begin :].decode())


class StoredDocuments(Sequence[Document]):
    """Some documents of a store in a stated order, each read from the disk whenever it is asked for.

    `places` says which: integers [D], each below the length of the store.
    """

    def __init__(self, store: DocumentStore, places: np.ndarray) -> None:
        self._store, self._places = store, places

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Document: ...
    @overload
    def __getitem__(self, index: slice | np.ndarray) -> StoredDocuments: ...
    def __getitem__(self, index: int | slice | np.ndarray) -> Document | StoredDocuments:
        if isinstance(index, slice | np.ndarray):
            return StoredDocuments(self._store, self._places[index])
        return self._store.read(int(self._places[index]))

    def __iter__(self) -> Iterator[Document]:
        return map(self._store.read, self._places.tolist())
