"""The source that a job runs: a copy, named by its content, so that editing the checkout changes no queued job.

A page of one's own, and what it imports from its folder, lie beside the rooms of the copy.
"""

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from deployments.dag.sources import ROOMS
from storage import attempts, durable
from storage.errors import BadInput
from storage.run_directory import read

REPOSITORY = Path(__file__).parents[3]
KEPT = {".py", ".yaml", ".md"}
NOTHING: Mapping[str, Path] = {}
LEFT_OUT = {"__pycache__", "sites"}
"""Folders that no job reads: a corrected site file makes no other source."""
NAME = re.compile(r"[0-9a-f]{16}")
"""Name of a copy."""


def staged(folder: Path, own: Mapping[str, Path] = NOTHING, repository: Path = REPOSITORY) -> Path:
    """Place below `folder` where the present source is, or would be, kept."""
    return folder / _digest(_contents(repository, own))


def stage_source(folder: Path, own: Mapping[str, Path] = NOTHING, repository: Path = REPOSITORY) -> Path:
    """Copies the four rooms, and the `own` files by name, to `folder/<digest>` unless they are there.

    The commit is written beside them.

    Python finds modules in the working directory first, so a job that starts there runs this copy and not the
    installed one.
    """
    contents = _contents(repository, own)
    target = folder / _digest(contents)
    of_own = attempts.own_version(next(iter(own.values())).parent, own.values()) if own else {}
    version = attempts.source_version() | of_own
    if target.is_dir():
        if read(target / attempts.SOURCE_FILE) != version:  # the same files, committed since
            with suppress(OSError):  # jobs may look at the copy: nothing else may lie there, however briefly
                noted = folder / f"{durable.TEMPORARY_PREFIX}{target.name}-{uuid.uuid4().hex[:8]}.json"
                durable.write_json(noted, version)
                os.replace(noted, target / attempts.SOURCE_FILE)
        return target
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{durable.TEMPORARY_PREFIX}{target.name}-{uuid.uuid4().hex[:8]}"
    with durable.new_directory(partial) as made:
        for name, content in contents:
            (made / name).parent.mkdir(parents=True, exist_ok=True)
            (made / name).write_bytes(content)
        durable.write_json(made / attempts.SOURCE_FILE, version)
    try:
        os.rename(partial, target)
    except OSError:  # another process was first: jobs may run there by now, so it is never replaced
        shutil.rmtree(partial, ignore_errors=True)
        if not target.is_dir():
            raise
    return target


def require_as_staged(copy: Path) -> None:
    """BadInput when a copy holds anything else than what its name was made of, but for what Python compiled there."""
    places = [place for place in copy.rglob("*") if place.is_symlink() or place.is_file()]
    beside = {
        place.relative_to(copy).as_posix(): place
        for place in {*places} - {copy / attempts.SOURCE_FILE, *_of_rooms(copy)}
        if place.parent.name != "__pycache__"
    }
    if any(place.is_symlink() for place in places) or _digest(_contents(copy, beside)) != copy.name:
        raise BadInput(
            f"the copy of the source {copy} is not what was staged there: somebody or something has changed it since. "
            "Remove it, and start the study again, which makes a new one"
        )


def _contents(repository: Path, own: Mapping[str, Path]) -> list[tuple[Path, bytes]]:
    files = [(file.relative_to(repository), file.read_bytes()) for file in _of_rooms(repository)]
    return files + [(Path(name), file.read_bytes()) for name, file in sorted(own.items())]


def _of_rooms(repository: Path) -> list[Path]:
    return sorted(
        file
        for room in ROOMS
        for file in (repository / room).rglob("*")
        if file.is_file() and LEFT_OUT.isdisjoint(file.relative_to(repository).parts) and file.suffix in KEPT
    )


def _digest(contents: list[tuple[Path, bytes]]) -> str:
    digest = hashlib.sha256()
    for name, content in contents:
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:16]
