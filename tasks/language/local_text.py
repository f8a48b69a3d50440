"""The text of local files: each is read through the one open file whose bytes were found to be those that were hashed.

The one column of a table that holds text is read, row by row, and nothing else of it matters. What cannot be read is
bad input with file, row and column; `text.skip_bad_rows` leaves it out and counts it.
"""

import bz2
import gzip
import io
import json
import logging
import lzma
import math
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from storage import external
from storage.errors import BadInput
from tasks.language.configuration import LabelledFiles, LocalFiles, columns_of
from tasks.language.document import Document, document
from tasks.language.pairs import joined, labelled

ROWS_AT_ONCE = 500
BOM = "\ufeff"
"""Begins a file, or stands in a text that was joined from files: no character of a text."""
SPACE = f" \t\r\n{BOM}"


SHOWN = 5
NOT_VALID = (ValueError, EOFError, zlib.error, lzma.LZMAError, pa.ArrowException)
"""Errors of the libraries for a file that is no such file, is cut off or damaged; beside OSError without a number."""

Rows = Iterator[tuple[int, str | ValueError | None]]
"""Number of the row, from 1 (0: the whole file), and its text: None where it has none, ValueError why it is none."""
Reader = Callable[[io.BufferedReader, LocalFiles, str], Rows]
"""Given the open file, which columns make a text, and where that is in words."""

log = logging.getLogger("ratchet.text")


def local_documents(text: LocalFiles, skipped: Counter[str]) -> Iterator[Document]:
    """A document for each text file, whose source is its relative name, and for each row of a table.

    Counts in `skipped` by file what is left out. BadInput names file, row and column of what cannot be read.
    """
    external.require_no_links(text.paths)
    digests = external.file_manifest(text.paths)
    names = {path: name for name, path in external.local_files(*text.paths)}
    for named in text.paths:
        read, passed_over = 0, _never_read(Path(named))
        for _, path in external.local_files(named):
            name = names[path]
            rows_of, decompressed = _reader_of(path)
            if not rows_of:
                passed_over.append(name)
                continue
            with external.opened(path, digests.get(name, "")) as file:
                for document in _documents(rows_of, decompressed(file), name, path, text, skipped):
                    read += 1
                    yield document
        others = f"{len(passed_over)} files: {', '.join(passed_over[:SHOWN])}{', ...' * (len(passed_over) > SHOWN)}"
        known = f"{', '.join(READERS)}, and all but Parquet also as {', '.join(DECOMPRESSED)}"
        if not read:
            note = f" (passed over: {others})" if passed_over else ""
            raise BadInput(
                f"text.paths: {named} holds no text that can be read{note}: give files in {known}, with text in column "
                f"{text.text_column!r}"
            )
        if passed_over:
            log.warning("text.paths: %s: passed over %s. Read are %s", named, others, known)
    log.info("text.paths: every file that was read has the sha256 of the fingerprint")


def _never_read(folder: Path) -> list[str]:
    """Links below a folder that lead nowhere or to a folder, and hidden texts."""
    left_out = [
        path
        for path in folder.rglob("*")
        if (path.is_symlink() and not path.is_file())
        or (path.is_file() and _reader_of(path)[0] and "/." in f"/{path.relative_to(folder)}")
    ]
    return sorted(str(path.relative_to(folder)) for path in left_out)


def _documents(
    rows_of: Reader, file: io.BufferedReader, name: str, path: Path, text: LocalFiles, skipped: Counter[str]
) -> Iterator[Document]:
    """The documents of one open file."""
    where = f"text.paths: {path}"
    rows = read = 0
    try:
        for row, value in rows_of(file, text, where):
            rows += 1
            if isinstance(value, ValueError):
                _require_skipped(where, row, value, text, read, skipped[name])
                skipped[name] += 1
            elif value and (value := value.lstrip(BOM)).strip():
                read += 1
                yield document(name if rows_of is _whole_text else None, value)
    except (*NOT_VALID, OSError) as error:
        if isinstance(error, OSError) and error.errno:
            raise  # the disk's, not the file's
        reason = str(error).partition("\n")[0].rstrip(". ") or type(error).__name__
        raise BadInput(f"{where} is not valid {path.suffix}, or is cut off: {reason}. Copy it again") from error
    without = rows - read - skipped[name]
    if not rows:
        log.warning("%s has no rows", where)
    if skipped[name]:
        log.warning("%s: %d of %d rows cannot be read and were left out", where, skipped[name], rows)
    if without:
        columns = " and ".join(map(repr, columns_of(text)))
        log.warning("%s: %d of %d rows have no text in column %s and were skipped", where, without, rows, columns)


def _require_skipped(where: str, row: int, error: ValueError, text: LocalFiles, read: int, skipped: int) -> None:
    """BadInput, unless such rows are to be left out; the first of them are told."""
    message = f"{where}{f', row {row}' * bool(row)}: {error}"
    if not text.skip_bad_rows:
        if isinstance(error, _OtherColumn) and not read:  # so are all rows, as it seems: to leave them out leaves none
            raise BadInput(message)
        other = " Is the text in another column, set text.text_column." if row and not read else ""
        raise BadInput(f"{message}. Repair it, or leave all like it out with text.skip_bad_rows=true.{other}")
    if skipped < SHOWN:
        log.warning("%s: left out", message)


# ------------------------------------------------------------------------------------------------ readers


def _whole_text(file: io.BufferedReader, text: LocalFiles, where: str) -> Rows:
    value: str | ValueError
    columns = columns_of(text)
    if columns[1:]:
        raise BadInput(f"{where} is one text, and not pairs: give JSON lines or Parquet with {' and '.join(columns)}")
    try:
        value = io.StringIO(external.decoded(file.read()), newline=None).read()
    except ValueError as error:
        value = error
    yield 0, value if isinstance(value, ValueError) or value.strip() else ValueError("is empty")


def _json_rows(file: io.BufferedReader, text: LocalFiles, where: str) -> Rows:
    """JSON lines, whose rows are their lines; or an array, which is held in memory."""
    known, names, columns = False, list[str](), columns_of(text)
    for row, value in _json_values(iter(_lines(file))):
        if isinstance(value, dict):
            known = known or value.keys() >= {*columns}
            names = list(value)
            lacking = [column for column in columns[1:] and columns if column not in value]
            yield (
                row,
                (
                    _OtherColumn(f"is no pair: it {_lacks(lacking[0], text, names)}")
                    if lacking
                    else _text_of([value.get(column) for column in columns], text)
                ),
            )
        elif isinstance(value, str | ValueError):
            known = known or isinstance(value, str)
            yield row, ValueError("is a text and no pair") if columns[1:] and isinstance(value, str) else value
        else:
            yield row, ValueError(f"is {_kind_of(value)}, and no object with a key {columns[0]!r}")
    if names and not known:
        raise BadInput(_no_column(where, text, names))


def _json_values(lines: Iterator[bytes | str]) -> Iterator[tuple[int, object]]:
    """Number of the row, and what stands in it: a value, or why there is none."""
    first = True
    for number, line in enumerate(lines, 1):
        if not (content := line.strip()):
            continue
        whole = first and content[:1] in (b"[", "[")
        first = False
        try:
            text = "".join(
                part.decode() if isinstance(part, bytes) else part for part in chain([line], lines if whole else ())
            )
            value = json.loads(text.strip(SPACE))
        except UnicodeDecodeError as error:
            yield 0 if whole else number, ValueError(external.wrong_byte(error))
            continue
        except (ValueError, RecursionError) as error:
            no_text = isinstance(line, bytes) and b"\0" in line
            yield 0 if whole else number, ValueError(external.NO_TEXT if no_text else f"is no JSON: {error}")
            continue
        yield from enumerate(value, 1) if whole else [(number, value)]


def _lines(file: io.BufferedReader) -> Iterable[bytes | str]:
    """Lines that end in LF: bytes of UTF-8, so that one that is none is told by its row; text where a mark says so."""
    encoding = external.encoding_of(file.peek(4)[:4])
    if encoding == "utf-8-sig":
        file.read(3)
    elif encoding != "utf-8":
        return io.TextIOWrapper(file, encoding, newline="\n")
    return file


def _parquet_rows(file: io.BufferedReader, text: LocalFiles, where: str) -> Rows:
    columns = columns_of(text)
    with pq.ParquetFile(file) as parquet:
        names = parquet.schema_arrow.names
        if any(names.count(column) != 1 for column in columns):
            raise BadInput(_no_column(where, text, names))
        row = 0
        for batch in parquet.iter_batches(ROWS_AT_ONCE, columns=[*columns]):
            for values in zip(*(batch.column(column) for column in columns), strict=True):
                row += 1
                try:
                    yield row, _text_of([value.as_py() for value in values], text)
                except UnicodeDecodeError as error:
                    yield row, ValueError(f"column {' or '.join(map(repr, columns))} is not UTF-8: {error}")


class _OtherColumn(ValueError):
    """What is wrong of the column, and which key names another."""


def _as_label(value: object) -> object:
    """A whole number as text, however a table holds it: a null makes floats of a column of them. Else as it is."""
    if value != value:  # NaN, which is how some tables have none
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        return value
    return str(int(value)) if value == int(value) else value


def _text_of(values: Sequence[object], text: LocalFiles) -> str | ValueError | None:
    """The text of a row, or the two of a pair; bytes are those of UTF-8, as some writers have them."""
    parts: list[str | None] = []
    for value, column in zip(values, columns_of(text), strict=True):
        if isinstance(text, LabelledFiles) and column == text.label_column:
            value = _as_label(value)
        if value is not None and not isinstance(value, str | bytes):
            advice = f"set text.{_key_of(column, text)} to the column that holds it, or write it as text"
            return _OtherColumn(f"column {column!r} holds {_kind_of(value)}, not text: {advice}")
        parts.append(value.decode() if isinstance(value, bytes) else value)
    if not parts[1:]:
        return parts[0]
    try:
        return (labelled if isinstance(text, LabelledFiles) else joined)(*(part or "" for part in parts))
    except ValueError as error:
        return error


def _kind_of(value: object) -> str:
    shown = repr(value)
    return f"{type(value).__name__} ({shown[:40]}{'...' * (len(shown) > 40)})"


def _no_column(where: str, text: LocalFiles, names: list[str]) -> str:
    return f"{where} {_lacks(next(column for column in columns_of(text) if names.count(column) != 1), text, names)}"


def _lacks(column: str, text: LocalFiles, names: list[str]) -> str:
    key = _key_of(column, text)
    return (
        f"has {'two' if column in names else 'no'} column {column!r}; its columns are {', '.join(sorted(names))}: set "
        f"text.{key} to the one that holds the {'label' if key == 'label_column' else 'text'}"
    )


def _key_of(column: str, text: LocalFiles) -> str:
    return next(key for key, value in text if key.endswith("_column") and value == column)


# ------------------------------------------------------------------------------------------ which reader

READERS: dict[str, Reader] = {
    **dict.fromkeys((".txt", ".md", ".rst"), _whole_text),
    **dict.fromkeys((".jsonl", ".json"), _json_rows),
    ".parquet": _parquet_rows,
}
DECOMPRESSED: dict[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
    ".zst": lambda file: io.BufferedReader(pa.CompressedInputStream(file, "zstd")),
}


def _reader_of(path: Path) -> tuple[Reader | None, Callable[[Any], Any]]:
    """Reader of a file, by its ending, and what decompresses it before; None where nothing reads it."""
    *before, last = ["", *(suffix.lower() for suffix in path.suffixes)]
    if last in DECOMPRESSED and before and before[-1] != ".parquet":
        return READERS.get(before[-1]), DECOMPRESSED[last]
    return READERS.get(last), lambda file: file
