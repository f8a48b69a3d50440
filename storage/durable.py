"""The one way in which a name becomes durable.

Temporary name in the same directory, write, flush, fsync the file, rename, fsync the directory. Nothing else in
Ratchet writes a final name. A process that dies on the way leaves only a `.tmp-` name, which the next attempt
sweeps away; a full or read-only disk leaves the old content as it was.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from storage import reading

TEMPORARY_PREFIX = ".tmp-"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
ESCAPED = "backslashreplace"
"""A file name that is no UTF-8 has lone surrogates, which are valid JSON in this form, and come back as they were."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def canonical_json(value: object) -> bytes:
    """The canonical JSON of a value (sorted keys, no spaces, no NaN), over which every digest is made."""
    return _CANONICAL.encode(value).encode(errors=ESCAPED)


def write_json(path: Path, value: object) -> None:
    """Durably writes `value` as JSON that a person can read."""
    write_bytes(path, (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(errors=ESCAPED))


def read_json(path: Path) -> Any:
    """The JSON value of a file; raises OSError where none can be read, or ValueError naming the file."""
    return reading.json_value(reading.read_bytes(path), path)


def write_bytes(path: Path, data: bytes) -> None:
    """Durably writes `data` under the name `path`."""

    def write() -> None:
        with new_file(path) as temporary:
            temporary.write_bytes(data)

    reading.tried_twice(write)  # as a whole: what fsync was refused once it does not write at the next call


def reached(moment: str, path: Path) -> None:
    """Marks a moment of a durable write of `path`. Does nothing; the kill tests replace it by the process's end."""


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yields a temporary name to write; when the block ends without an error the file is durable as `path`."""
    temporary = _temporary_name(path)
    try:
        yield temporary
        reached("written", path)
        _fsync(temporary)
        reached("synced", path)
        _rename(temporary, path)
        reached("renamed", path)
        _fsync(path.parent)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if full := disk_full(error, path):
            raise full from error
        raise


@contextmanager
def new_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary directory to fill; when the block ends without an error it is durable as `path`.

    An existing directory is replaced: it is renamed away first, because rename() does not replace a directory that
    holds files, and a death between the two renames leaves no directory rather than a mixture.
    """
    temporary = _temporary_name(path)
    try:
        temporary.mkdir(parents=True)
        reached("begun", path)
        yield temporary
        reached("written", path)
        mode = temporary.stat().st_mode
        for file in sorted(temporary.rglob("*")):
            if file.is_file() and not mode & stat.S_IRWXO:  # safetensors makes files that not even the group reads
                file.chmod(stat.S_IMODE(mode) & 0o666)
            _fsync(file)
        _fsync(temporary)
        reached("synced", path)
        if path.exists():
            _replace_directory(path, temporary)
        else:
            _rename(temporary, path)
        reached("renamed", path)
        _fsync(path.parent)
        reached("durable", path)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if full := disk_full(error, path):
            raise full from error
        raise


def _replace_directory(path: Path, temporary: Path) -> None:
    """Puts `temporary` in the place of `path`; whatever fails, one of the two is there.

    A holder that was frozen just before, taken over and revived finds its temporary directory swept away.
    """
    if not temporary.exists():
        raise FileNotFoundError(f"{temporary} was removed by another process while {path} was written")
    replaced = _temporary_name(path)
    _rename(path, replaced)
    reached("old renamed away", path)
    try:
        _rename(temporary, path)
    except OSError:
        _rename(replaced, path)
        raise
    shutil.rmtree(replaced, ignore_errors=True)


def remove_directory(path: Path) -> None:
    """Removes a directory under a temporary name: a death on the way leaves no half of it under its own."""
    temporary = _temporary_name(path)
    _rename(path, temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def replace_quickly(path: Path, value: object) -> None:
    """Replaces a heartbeat or progress file by one rename, without fsync: its loss costs nothing."""
    temporary = _temporary_name(path)
    try:
        temporary.write_bytes(canonical_json(value))
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def replace_link(path: Path, target: Path) -> None:
    """Makes `path` a symbolic link to `target`, relative to its folder; replaces an existing link.

    Raises OSError where the disk knows no links, or where a folder has the name.
    """
    temporary = _temporary_name(path)
    try:
        temporary.symlink_to(target.relative_to(path.parent))
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def disk_full(error: BaseException, path: Path) -> OSError | None:
    """An OSError that names `path`, if `error` means a full disk in any library's words, else None.

    safetensors raises an error of its own that ends with "(os error 28)", NumPy an OSError without a number.
    """
    number = error.errno if isinstance(error, OSError) else None
    if match := re.search(r"\(os error (\d+)\)", str(error)):
        number = int(match[1])
    elif isinstance(error, OSError) and number is None and re.search(r"\d+ requested and \d+ written", str(error)):
        number = errno.ENOSPC
    return OSError(number, os.strerror(number), str(path)) if number in DISK_FULL else None


def remove_leftovers(directory: Path, guests: str = "") -> list[str]:
    """Removes what dead processes left half written below `directory`; returns the names.

    Only the holder of the run's lock may call this: to anyone else a temporary name may be work in progress.
    The folder `locks` is left alone, since other processes write there at the same time, and what is in `guests`.
    """
    removed = []
    for leftover in sorted(directory.rglob(TEMPORARY_PREFIX + "*")):
        if leftover.parent.name == "locks" or (guests and directory / guests in leftover.parents):
            continue
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
        removed.append(leftover.relative_to(directory).as_posix())
    return removed


def refresh(folder: Path) -> None:
    """Has NFS list a folder anew: for up to a minute it does not show what another host wrote there.

    A client notices changes by others when it makes one itself (RFC 1813, weak cache consistency).
    """
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        pass  # there is no such folder, or no space


def sha256_file(path: Path) -> str:
    """Hexadecimal sha256 of a regular file's bytes; ValueError for a pipe or a device."""
    with reading.opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: object) -> str:
    """Hexadecimal sha256 of a value's canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def _temporary_name(path: Path) -> Path:
    return path.parent / f"{TEMPORARY_PREFIX}{path.name}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def _rename(path: Path, to: Path) -> None:
    """Tried once again, where a server lost the answer; it may have done it."""
    try:
        os.rename(path, to)
    except OSError as error:
        if error.errno not in reading.UNANSWERED:
            raise
        if os.path.lexists(path) or not os.path.lexists(to):
            os.rename(path, to)


def _fsync(path: Path) -> None:
    descriptor = reading.tried_twice(lambda: os.open(path, os.O_RDONLY))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
