"""Inputs from outside, by content: local files by digest.

Its values go into fingerprints, so they name no place: the same files elsewhere are the same input.
"""

import codecs
import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from storage import durable, reading
from storage.errors import BadInput, NoSuchFile

BYTE_ORDER_MARKS = {  # utf-32 first: its mark begins with that of utf-16
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def file_manifest(paths: list[str]) -> dict[str, str]:
    """Maps the relative name of every file in or below `paths` to its sha256; BadInput where there is none.

    Names are those of `local_files`. Hidden files are passed over.
    """
    manifest: dict[str, str] = {}
    digests = _DigestCache()
    for name, file in local_files(*paths):
        try:
            manifest[name] = digests.sha256(file)
        except OSError as error:
            raise BadInput(f"{file} cannot be read: {error.strerror or error}") from error
    digests.save()
    return manifest


@contextmanager
def opened(file: Path, sha256: str | None) -> Iterator[io.BufferedReader]:
    """Opens a file at its beginning after its bytes matched `sha256` (None: any bytes); BadInput where they do not.

    The same open file is hashed and read, so no other file can come in between.
    """
    with reading.opened(file) as handle:
        if sha256 is not None and hashlib.file_digest(handle, "sha256").hexdigest() != sha256:
            raise BadInput(
                f"{file} is not the file any more whose sha256 is in the fingerprint ({sha256[:12] or 'none'}): it "
                "changed after it was hashed. Restore it, or start the same command again to use it as it is now"
            )
        handle.seek(0)
        yield handle


NO_TEXT = (
    "holds a NUL character, so that it is no text, or UTF-16 without a mark that says so: convert it, as with "
    "iconv -f utf-16le -t utf-8"
)


def encoding_of(beginning: bytes) -> str:
    """The encoding that a byte-order mark names; UTF-8 without one."""
    return next((name for mark, name in BYTE_ORDER_MARKS.items() if beginning.startswith(mark)), "utf-8")


def decoded(data: bytes) -> str:
    """The text of a file, without its byte-order mark. ValueError names the bytes that are no text, and what to do."""
    encoding = encoding_of(data)
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"line {line}, {wrong_byte(error, 'the file', encoding)}") from None
    if (place := text.find("\0")) >= 0:
        line = text.count("\n", 0, place) + 1
        raise ValueError(f"line {line} {NO_TEXT}")
    return text


def wrong_byte(error: UnicodeDecodeError, where: str = "the row", encoding: str = "utf-8") -> str:
    """The byte that is no text, and what to do."""
    return (
        f"byte {error.start + 1} of {where} (0x{error.object[error.start]:02x}) is no "
        f"{encoding.removesuffix('-sig').upper()} ({error.reason}): convert it, as with iconv -f latin1 -t utf-8"
    )


def local_files(*paths: str) -> list[tuple[str, Path]]:
    """(name, path) of each file that is given, or lies below a given folder: its own, or relative to the folder; where
    several are called alike, with as many of the folders before it as tell them apart. BadInput for one given twice."""
    files = [file for each in paths for file in _files_of(each)]
    names, before = [name for name, _ in files], 0
    whole = [Path(os.path.abspath(path)) for _, path in files]
    if twice := [path for path, times in Counter(whole).items() if times > 1]:
        raise BadInput(f"{twice[0]} is given twice, by itself or by a folder: give it once")
    while alike := {name for name, times in Counter(names).items() if times > 1}:
        before += 1  # run1/data.root and run2/data.root are two files
        names = [
            "/".join(path.parts[-len(Path(own).parts) - before :]) if name in alike else name
            for name, (own, _), path in zip(names, files, whole, strict=True)
        ]
    return [(name, path) for name, (_, path) in zip(names, files, strict=True)]


def require_no_links(paths: list[str]) -> None:
    """BadInput names a link below a folder of `paths` that leads to a file outside of it: whoever made the folder would
    choose what is read. A link that is given by its own name is followed."""
    for place in paths:
        folder = Path(place).expanduser()
        for _, path in _files_of(place) if folder.is_dir() else ():
            if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                where = f"{path} is a symbolic link to {path.resolve()}, outside of {place}"
                raise BadInput(f"{where}: put a copy in its place, or give that file by its own name beside the folder")


def _files_of(name: str) -> list[tuple[str, Path]]:
    """(relative name, path) of a file, or of each file below a folder, sorted by name."""
    path = Path(name).expanduser()
    if path.is_file():
        return [(path.name, path)]
    if not path.is_dir():
        fetched = ": `make assets` fetches it" if path.parent.name == "assets" else ""
        raise NoSuchFile(name, f"there is no file or folder {path}{fetched}")
    files = [
        (file.relative_to(path).as_posix(), file)
        for file in sorted(path.rglob("*"))
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not files:
        raise BadInput(f"the folder {path} holds no files")
    return files


class _DigestCache:
    """sha256 by (path, size, mtime, ctime, inode), in the user's cache folder: hashing 6 GB again costs a minute.

    A program can set mtime back, as rsync and cp -p do, but not ctime. A cache that others can write is not trusted.
    """

    def __init__(self) -> None:
        caches = os.environ.get("XDG_CACHE_HOME", "")
        caches = caches if os.path.isabs(caches) else os.path.expanduser("~/.cache")
        self._file = Path(caches) / "ratchet" / "digests.json"
        self._known: dict[str, Any] = {}
        self._changed = False
        with suppress(OSError, ValueError), reading.opened(self._file) as file:
            # an unreadable cache is computed again
            if self._is_ours() and os.fstat(file.fileno()).st_uid == os.getuid():
                digests = reading.json_value(file.read(reading.JSON_BYTES), self._file)
                self._known = digests if isinstance(digests, dict) else {}

    def _is_ours(self) -> bool:
        """True if nobody else can have put a file there. A link has all rights, and is not followed."""
        folder = self._file.parent.lstat()
        return folder.st_uid == os.getuid() and not folder.st_mode & 0o022

    def sha256(self, path: Path) -> str:
        key = str(path.resolve())
        with reading.opened(path) as file:
            stat = os.fstat(file.fileno())
            stamp = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
            entry = self._known.get(key)
            if isinstance(entry, list) and len(entry) == 2 and entry[0] == stamp:
                return entry[1]
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._known[key] = [stamp, digest]
        self._changed = True
        return digest

    def save(self) -> None:
        if self._changed:
            with suppress(OSError):  # only a cache
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if self._is_ours():
                    durable.replace_quickly(self._file, self._known)
