"""Pages that come with Ratchet, and what a page of one's own is made of: its file, and the modules of its folder that
it and its stages import.

The files are read and not imported: work modules take torch. What is imported under `if TYPE_CHECKING` or in a `try`
that expects an ImportError may be missing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.util
import re
import sys
import tokenize
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from storage import durable
from storage.errors import BadInput

ROOMS = ("ratchet", "flows", "tasks", "deployments", "storage")
FLOWS = "flows"
"""The package whose modules are the pages that come with Ratchet."""
PARSES = 5
KEPT = ".sources"
"""Folder below the root that holds copies of what ran, by digest."""


@dataclass(frozen=True)
class _Import:
    name: str
    line: int
    may_be_missing: bool


@functools.cache
def page_names() -> list[str]:
    """Names of the pages that come with Ratchet: the modules of `flows/` with a function `page`, or with `@study`."""
    folder = Path(importlib.import_module(FLOWS).__path__[0])
    return sorted(file.stem for file in folder.glob("*.py") if _defines_page(file))


def sources(modules: Iterable[str], folder: Path) -> list[Path]:
    """The files below `folder` of these modules and of what they import from it, packages with their `__init__`."""
    seen: set[Path] = set()
    for module in modules:
        _collect(module, folder, seen)
    return sorted(seen)


def digest_of(files: Iterable[Path], folder: Path) -> str:
    """sha256 over names below `folder` and what stages may do by the files, the same wherever the folder lies; empty
    for no files."""
    contents = [f"{file.relative_to(folder).as_posix()}\0{_without_study(file)}" for file in sorted(files)]
    return hashlib.sha256("\0".join(contents).encode()).hexdigest() if contents else ""


def _without_study(file: Path) -> str:
    """The text of a file without its function with `@study`, which does none of a stage's work."""
    lines = re.split(r"(?<=\n)", text := text_of(file))  # as Python counts lines: `splitlines` knows more ends
    for node in reversed(parsed(text, str(file)).body):
        if isinstance(node, ast.FunctionDef) and _is_study(node):
            del lines[node.decorator_list[0].lineno - 1 : node.end_lineno]
    return "".join(lines)


def _is_study(node: ast.FunctionDef) -> bool:
    called = [getattr(decorator, "func", decorator) for decorator in node.decorator_list]
    return any(getattr(decorator, "attr", getattr(decorator, "id", "")) == "study" for decorator in called)


def keep(files: Iterable[Path], folder: Path, target: Path) -> None:
    """Copies these files below `folder` to `target`, unless it is there."""
    if not target.exists():
        with suppress(OSError), durable.new_directory(target) as made:  # a stage says what is wrong with the disk
            for file in files:
                (copy := made / file.relative_to(folder)).parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())


MOVED = ": Ratchet's modules may move, so import its names from `ratchet` (`from ratchet import publish_report`)"


def require_usable(files: Iterable[Path], folder: Path) -> None:
    """BadInput, with file and line, for a module name that is taken and for an import of what is not there."""
    for file in files:
        _require_free_name(file, folder)
        for imported in _imports(file, folder):
            if not imported.may_be_missing and not _is_there(imported.name, folder):
                ours = imported.name.partition(".")[0] in ROOMS
                raise BadInput(f"{file}:{imported.line}: there is no module {imported.name!r}{MOVED * ours}")


def require_free_names(folder: Path) -> None:
    """BadInput for a file of the folder that would take the place of another module where the folder comes first."""
    for file in sorted([*folder.glob("*.py"), *folder.glob("*/__init__.py")]):
        _require_free_name(file, folder)


def text_of(file: Path) -> str:
    """The text of a Python file as Python reads it: by its byte-order mark or coding cookie, whatever the locale."""
    try:
        with tokenize.open(file) as opened:
            return opened.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        reason = f"it is no UTF-8, and no coding cookie says what it is ({error})"
        raise BadInput(f"{file}: {reason}: save it as UTF-8, or begin it with # -*- coding: latin-1 -*-") from None


@functools.lru_cache(maxsize=256)  # several stages have one file
def parsed(source: str, file: str = "<unknown>") -> ast.Module:
    """`ast.parse`, asked again where CPython is confused: SyntaxError for what is no Python, as there.

    All threads of a process share one counter of depth, and a thread that parses while another does may be told of a
    mismatch that is none (SystemError: python/cpython issue 106905). A study's flow run has threads of Prefect's.
    """
    for _ in range(PARSES - 1):
        try:
            return ast.parse(source, file)
        except SystemError:
            continue
    return ast.parse(source, file)


def _defines_page(file: Path) -> bool:
    functions = [node for node in parsed(text_of(file)).body if isinstance(node, ast.FunctionDef)]
    return any(node.name == "page" or _is_study(node) for node in functions)


def _collect(module: str, folder: Path, seen: set[Path]) -> None:
    parts = module.split(".")
    if parts[0] in ROOMS and folder == Path(__file__).parents[2]:
        return  # a job's copy of the source, where the page lies beside our own rooms
    for length in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:length])
        file = next(
            (candidate for candidate in (place.with_suffix(".py"), place / "__init__.py") if candidate.is_file()), None
        )
        if file is None or file in seen:
            continue
        seen.add(file)
        for candidate in _imports(file, folder):
            _collect(candidate.name, folder, seen)


def _imports(file: Path, folder: Path) -> list[_Import]:
    """Modules that a file imports, anywhere in it; for `from a import b`, a and a.b, which may be no module."""
    return _imports_in(text_of(file), str(file), file.relative_to(folder).parts[:-1])


@functools.lru_cache(maxsize=1000)  # the stages of a page ask for the same files
def _imports_in(text: str, file: str, package: tuple[str, ...]) -> list[_Import]:
    try:
        tree = parsed(text, file)
    except SyntaxError as error:
        raise BadInput(f"{error.filename}:{error.lineno}: SyntaxError: {error.msg}") from None
    guarded = {inner for node in ast.walk(tree) if _guards(node) for inner in ast.walk(node)}
    imports = list[_Import]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += (_Import(alias.name, node.lineno, node in guarded) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            if module:
                imports.append(_Import(module, node.lineno, node in guarded))
            names = [".".join(filter(None, [module, alias.name])) for alias in node.names]
            imports += (_Import(name, node.lineno, True) for name in names)
    return imports


def _guards(node: ast.AST) -> bool:
    """True where imports in this statement may fail."""
    if isinstance(node, ast.If):
        return any(getattr(part, "id", getattr(part, "attr", "")) == "TYPE_CHECKING" for part in ast.walk(node.test))
    if isinstance(node, ast.Try):
        kinds = [handler.type for handler in node.handlers]
        caught = {part.id for kind in kinds if kind for part in ast.walk(kind) if isinstance(part, ast.Name)}
        return None in kinds or bool(caught & {"ImportError", "ModuleNotFoundError", "Exception"})
    return False


def _is_there(name: str, folder: Path) -> bool:
    """True where a module can be found. Imports nothing for it but the parents of our own modules."""
    top = name.partition(".")[0]
    if top in ROOMS:
        return _spec(name) is not None
    return any(folder.joinpath(f"{top}{ending}").exists() for ending in (".py", "")) or _spec(top) is not None


def _spec(name: str) -> object:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _require_free_name(file: Path, folder: Path) -> None:
    """BadInput when a module of this name is found before the own one: one of them would be imported for the other."""
    top = file.relative_to(folder).parts[0].removesuffix(".py")
    other = sys.modules.get(top) or _spec(top)
    origin = getattr(other, "__file__", None) or getattr(other, "origin", None)
    packages = getattr(other, "__path__", None) or getattr(other, "submodule_search_locations", None) or []
    if origin is None and any(Path(place).absolute() == folder / top for place in packages):
        return  # a folder without __init__.py
    if other is not None and (origin is None or folder not in Path(origin).absolute().parents):
        raise BadInput(f"{file}: the module name {top!r} is taken by {origin or 'Python itself'}: rename the file")
