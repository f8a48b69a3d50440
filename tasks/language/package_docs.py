"""Docstrings of the standard library and of installed packages, extracted once for each version.

They are English prose that every machine with this environment has, so that a study needs no download.
"""

from __future__ import annotations

import ast
import importlib.metadata
import logging
import platform
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from storage.errors import BadInput
from tasks.language.documents import Document, document
from tasks.language.text_cache import cached

EXTRACTION = 1  # raise it when the extraction changes: what was cached before is then extracted again
MIN_WORDS = 20  # a shorter docstring is a label, not prose
TEST_FOLDERS = frozenset({"test", "tests"})
STDLIB_SKIPPED = TEST_FOLDERS | {"site-packages", "dist-packages", "idlelib", "lib2to3", "ensurepip"}

log = logging.getLogger("ratchet.text")


def package_documents(packages: list[str], cache: Path) -> Iterator[Document]:
    """Docstrings of at least MIN_WORDS words of the standard library, then of each named distribution.

    The source is the module file, "python/json/decoder.py" or "numpy/linalg/_linalg.py". Extractions are kept
    as `<cache>/package-docs/<name>-<version>.parquet`. Raises BadInput for a distribution that is not
    installed, does not list its files, or has no such docstring.
    """
    folder = cache / "package-docs"
    yield from _cached(folder / f"python-{platform.python_version()}.parquet", _stdlib_files())
    for name in packages:
        distribution = _distribution(name)
        file = folder / f"{name.lower()}-{distribution.version}.parquet"
        found = list(_cached(file, _distribution_files(distribution)))
        if not found:
            raise BadInput(
                f"text.packages: {name} {distribution.version} has no docstring of {MIN_WORDS} words "
                "or more: take it off the list"
            )
        yield from found


def _cached(cache_file: Path, files: Iterable[tuple[str, Path]]) -> Iterator[Document]:
    return cached(cache_file, EXTRACTION, lambda: _extract(files, cache_file.stem))


# ------------------------------------------------------------------------------------------- which files


def _stdlib_files() -> Iterator[tuple[str, Path]]:
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if not STDLIB_SKIPPED.intersection(relative.parts):
            yield f"python/{relative.as_posix()}", path


def _distribution(name: str) -> importlib.metadata.Distribution:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise BadInput(
            f"text.packages names {name!r}, which is not installed here: install it or take it off the list"
        ) from None


def _distribution_files(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    if distribution.files is None:
        raise BadInput(
            f"text.packages: the installed {distribution.name} does not list its files (no RECORD): "
            "install it again with pip or take it off the list"
        )
    for file in sorted(distribution.files, key=str):
        inside = ".." not in file.parts and not TEST_FOLDERS.intersection(file.parts)
        if inside and file.suffix == ".py":
            yield file.as_posix(), Path(str(distribution.locate_file(file)))


# -------------------------------------------------------------------------------------------- extraction


def _extract(files: Iterable[tuple[str, Path]], what: str) -> list[Document]:
    found: list[Document] = []
    unusable: list[str] = []
    for source, path in files:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # invalid escapes in other people's code
                tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, FileNotFoundError):
            unusable.append(source)
            continue
        found += [document(source, text) for text in _docstrings(tree)]
    if unusable:
        log.warning(
            "%s: %d module files are missing or not Python and were skipped, first %s",
            what, len(unusable), unusable[0],
        )  # fmt: skip
    return found


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
