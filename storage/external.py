"""Inputs from outside, by content: local files by digest, installed packages by version.

What this module returns goes into fingerprints, so it names no place: the same files elsewhere are the same input.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage import durable
from storage.errors import BadInput

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")
GGUF_SUFFIX = ".gguf"
GGUF_MAGIC = b"GGUF"


def package_versions(names: list[str]) -> list[str]:
    """Sorted `name==version` of Python itself and of the named distributions; BadInput for a missing one."""
    found = [f"python=={platform.python_version()}"]
    for name in names:
        try:
            found.append(f"{name.lower()}=={importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            raise BadInput(
                f"text.packages names {name!r}, which is not installed here: install it or take it off the list"
            ) from None
    return sorted(found)


def file_manifest(paths: list[str]) -> dict[str, str]:
    """Relative name -> sha256 of every file named by, or lying below, `paths`; BadInput where there is none.

    Names are relative to the folder given, or the bare name of a file given; hidden files are passed over.
    """
    manifest: dict[str, str] = {}
    digests = _DigestCache()
    for given in paths:
        for name, file in local_files(given):
            if name in manifest:
                raise BadInput(f"two input files are both called {name!r} (the second is {file}): rename one")
            manifest[name] = digests.sha256(file)
    digests.save()
    return manifest


def local_files(given: str) -> list[tuple[str, Path]]:
    """(relative name, path) of the files that `given`, a file or a folder, stands for, sorted by name."""
    path = Path(given).expanduser()
    if path.is_file():
        return [(path.name, path)]
    if not path.is_dir():
        fetched = ": `make assets` fetches it" if path.parent.name == "assets" else ""
        raise BadInput(f"text.paths: there is no file or folder {path}{fetched}")
    files = [
        (file.relative_to(path).as_posix(), file)
        for file in sorted(path.rglob("*"))
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not files:
        raise BadInput(f"the folder {path} holds no files")
    return files


def model_manifest(given: str) -> dict[str, str]:
    """The manifest of a folder written by `save_pretrained`, or of one GGUF file.

    BadInput when it is neither, or when configuration, weights or tokenizer are missing.
    """
    path = Path(given).expanduser()
    if path.suffix == GGUF_SUFFIX:
        require_gguf(path)
        return file_manifest([given])
    if not path.is_dir():
        raise BadInput(
            f"model.path {path} is not a folder: give the folder that save_pretrained wrote, or a {GGUF_SUFFIX} file"
        )
    if not (path / "config.json").is_file():
        raise BadInput(f"the model folder {path} has no config.json: give the folder that save_pretrained wrote")
    if not any(file for pattern in WEIGHT_FILES for file in path.glob(pattern)):
        raise BadInput(
            f"the model folder {path} has no weights (no *.safetensors or pytorch_model*.bin): copy them there, "
            "or give the folder that holds them"
        )
    if not any((path / name).is_file() for name in TOKENIZER_FILES):
        raise BadInput(
            f"the model folder {path} has no tokenizer (none of {', '.join(TOKENIZER_FILES)}): save the model's "
            "tokenizer into it with save_pretrained"
        )
    return file_manifest([given])


def require_gguf(path: Path) -> None:
    """BadInput unless `path` is a file that begins as GGUF files do."""
    if not path.is_file():
        raise BadInput(f"model.path {path} is not a file: give the GGUF file (`make assets` fetches one into assets/)")
    with path.open("rb") as file:
        if file.read(len(GGUF_MAGIC)) != GGUF_MAGIC:
            raise BadInput(
                f"model.path {path} is not a GGUF file, in spite of its name: its first four bytes must be "
                f"{GGUF_MAGIC.decode()}. Copy the file again"
            )


@contextmanager
def gguf_alone(path: Path) -> Iterator[Path]:
    """A folder for the length of the block that holds nothing but a link to this GGUF file.

    transformers reads settings that lie beside a model file, and those are not in the file's digest.
    """
    require_gguf(path)
    with tempfile.TemporaryDirectory(prefix="ratchet-gguf-") as folder:
        (Path(folder) / path.name).symlink_to(path.resolve())
        yield Path(folder)


class _DigestCache:
    """sha256 by (path, size, mtime, inode), kept in the temporary folder: hashing 6 GB again costs a minute."""

    def __init__(self) -> None:
        self._file = Path(tempfile.gettempdir()) / f"ratchet-digests-{os.getuid()}.json"
        self._known: dict[str, Any] = {}
        try:
            if self._file.stat().st_uid == os.getuid():
                known = json.loads(self._file.read_bytes())
                self._known = known if isinstance(known, dict) else {}
        except (OSError, ValueError):
            pass  # only a cache: what cannot be read is computed again
        self._changed = False

    def sha256(self, path: Path) -> str:
        stat = path.stat()
        key, stamp = str(path.resolve()), [stat.st_size, stat.st_mtime_ns, stat.st_ino]
        entry = self._known.get(key)
        if isinstance(entry, list) and len(entry) == 2 and entry[0] == stamp:
            return entry[1]
        digest = durable.sha256_file(path)
        self._known[key] = [stamp, digest]
        self._changed = True
        return digest

    def save(self) -> None:
        if self._changed:
            try:
                durable.replace_quickly(self._file, self._known)
            except OSError:
                pass  # only a cache
