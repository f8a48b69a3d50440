"""Sources of the text: installed packages, local files, or a data set of the Hugging Face hub.

Every source gives `Document`s. Text that is missing, empty or unreachable is an error that says so, never an empty
list and never another text instead. Docstrings of installed packages are English prose that every machine with this
environment has, so that a study needs no download; they are extracted once for each version.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import logging
import platform
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from storage import durable
from storage.errors import BadInput
from tasks.language import foreign
from tasks.language.configuration import HubDataset, HubStream, LocalFiles, PackageDocs, PairDataset, columns_of
from tasks.language.document import Document, document
from tasks.language.hub import reachable, require_hub_name
from tasks.language.local_text import local_documents
from tasks.language.pairs import joined

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
    for each in cached(file, HUB_READING + others, lambda: _streamed(text, cache)):
        if each.text:
            yield each
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


def _column(row: Mapping[str, object], column: str, where: str, number: int) -> str:
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


EXTRACTION = 1  # raise it when the extraction changes: what was cached before is then extracted again
MIN_WORDS = 20  # a shorter docstring is a label, not prose
TEST_FOLDERS = frozenset({"test", "tests"})
STDLIB_SKIPPED = TEST_FOLDERS | {"site-packages", "dist-packages", "idlelib", "lib2to3", "ensurepip"}


def package_documents(packages: list[str], cache: Path) -> Iterator[Document]:
    """Docstrings of at least MIN_WORDS words of the standard library, then of each named distribution.

    The source is the module file, "python/json/decoder.py" or "numpy/linalg/_linalg.py". Extractions are kept
    as `<cache>/package-docs/<name>-<version>.parquet`. Raises BadInput for a distribution without such
    a docstring; that each is installed was asked before.
    """
    folder = cache / "package-docs"
    yield from _cached(folder / f"python-{platform.python_version()}.parquet", _stdlib_files())
    for name in packages:
        distribution = importlib.metadata.distribution(name)
        file = folder / f"{name.lower()}-{distribution.version}.parquet"
        files = list(_cached(file, _distribution_files(distribution)))
        if not files:
            raise BadInput(
                f"text.packages: {name} {distribution.version} has no docstring of {MIN_WORDS} words "
                "or more: take it off the list"
            )
        yield from files


def _cached(cache_file: Path, files: Iterable[tuple[str, Path]]) -> Iterator[Document]:
    return cached(cache_file, EXTRACTION, lambda: _extract(files, cache_file.stem))


# ------------------------------------------------------------------------------------------- which files


def _stdlib_files() -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not STDLIB_SKIPPED.intersection(relative.parts):
            yield f"python/{relative.as_posix()}", path


def _distribution_files(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    for file in sorted(distribution.files or [], key=str):
        inside = ".." not in file.parts and not TEST_FOLDERS.intersection(file.parts)
        if inside and file.suffix == ".py":
            yield file.as_posix(), Path(str(distribution.locate_file(file)))


# -------------------------------------------------------------------------------------------- extraction


def _extract(files: Iterable[tuple[str, Path]], what: str) -> list[Document]:
    documents: list[Document] = []
    unusable: list[str] = []
    for source, path in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's code
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, FileNotFoundError):
            unusable.append(source)
            continue
        documents += [document(source, text) for text in _docstrings(tree)]
    if unusable:
        log.warning(
            "%s: %d module files are missing or not Python and were skipped, first %s",
            what, len(unusable), unusable[0],
        )  # fmt: skip
    return documents


def _docstrings(tree: ast.AST) -> Iterator[str]:
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text and len(text.split()) >= MIN_WORDS:
                yield text


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """The module and every statement in it; `ast.walk` would visit every expression too, which takes the most time."""
    waiting = [tree]
    while waiting:
        yield (node := waiting.pop())
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, block, ())


# --------------------------------------------------------------------------------------------------- cache

COLUMNS = ("source", "text")


def cached(cache_file: Path, version: int, get: Callable[[], Iterable[Document]]) -> Iterator[Document]:
    """The documents of `cache_file`; where there is none, or a damaged one, those of `get()`, which are kept.

    They are kept once the last of them is taken: a reader that ends before leaves no file. `version` is raised when
    `get` changes, and what was kept before is then got again.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    documents = list[Document]()
    if cache_file.exists():
        try:
            with pq.ParquetFile(cache_file) as file:
                documents = [Document(**row) for row in file.read().to_pylist()]
                digest = (file.metadata.metadata or {}).get(b"digest", b"").decode()
            if digest != _digest(version, documents):
                raise ValueError("its digest is not that of its rows")
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:  # raised by pyarrow for damaged files
            log.warning("%s is damaged or of another version, made again: %s", cache_file, error)
        else:
            yield from documents
            return
    documents = []
    for each in get():
        documents.append(each)
        yield each
    columns = {name: [getattr(each, name) for each in documents] for name in COLUMNS}
    schema = pa.schema([(name, pa.string()) for name in COLUMNS], {"digest": _digest(version, documents)})
    cache_file.parent.mkdir(parents=True, exist_ok=True)
    with durable.new_file(cache_file) as temporary:
        pq.write_table(pa.table(columns, schema=schema), temporary)


def _digest(version: int, documents: Iterable[Document]) -> str:
    digest = hashlib.sha256(durable.canonical_json(version))
    for each in documents:
        digest.update(durable.canonical_json([each.source, each.text]))
    return digest.hexdigest()
