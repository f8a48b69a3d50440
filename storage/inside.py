"""Turns a name from data into a path inside the folder that it belongs to, and never through a link.

Markers, results, manifests and stage.json name files, and anybody may have written them.
"""

import json
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

from storage import durable
from storage.errors import BadInput
from storage.visible import visible


class Outside(BadInput, ValueError):
    """A name leads out of its folder, or through a link."""


def inside(directory: Path, name: object, folder: bool = False) -> Path:
    """The path of the regular file (or, with `folder`, the folder) `name` in `directory`.

    `directory` itself may be reached through links; below it nothing may be one. Raises Outside for a name that leads
    elsewhere, FileNotFoundError where nothing is there.
    """
    path, mode = directory, stat.S_IFDIR
    for part in parts(name):
        if not stat.S_ISDIR(mode):
            raise Outside(f"{name} leads through {path}, which is no folder")
        path /= part
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise Outside(f"{name} leads through {path}, which is a symbolic link: replace it by its target")
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        raise Outside(f"{name} is no {'folder' if folder else 'regular file'} in {directory}")
    return path


def parts(name: object) -> tuple[str, ...]:
    """The parts of a relative name without `..`; raises Outside for any other."""
    if not isinstance(name, str):
        raise Outside(f"{name!r} names no file: a name is text")
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise Outside(f"{name!r} names nothing inside its folder: a name is relative and has no ..")
    return path.parts


def copy(directory: Path, name: str, folder: Path, sha256: str | None = None) -> str:
    """Copies the file `name` of `directory` to the same name in `folder`; returns its sha256.

    Raises Outside also where that differs from `sha256`.
    """
    target = folder.joinpath(*parts(name))
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(inside(directory, name), target)
    copied = durable.sha256_file(target)
    if sha256 not in (None, copied):
        raise Outside(f"{name} in {directory} was changed while it was copied: do it again")
    return copied


def refuse_links(directory: Path, root: Path | None = None, guests: str = "") -> None:
    """Raises Outside where a link below `directory`, or between it and `root`, would send what is written elsewhere.

    What lies deeper in its folder `guests` is others', and nothing of ours is written there.
    """
    folders = [directory, *directory.parents]
    for path in (*folders[: folders.index(root) if root else 0], *directory.rglob("*")):
        if path.is_symlink() and not (guests and directory / guests in path.parents):
            raise Outside(
                f"{path} is a symbolic link, and none may be in a run directory or on the way to it: replace it by its "
                "target (the root, or a folder above it, may be one)"
            )


Value = TypeVar("Value")
FIELDS = {
    "path": (
        *("COMPLETE.json: outputs", "MANIFEST.json of an export", "checkpoints/*/manifest.json: files"),
        *("checkpoints/*/state.json: scratch", "checkpoints/*/state.json: link", "stage.json: fingerprint"),
        *("stage.json: inputs", "result.json: report", "result.json: tables", "attempts/*.json: attempt"),
        *("a profile: name", "*.index.json of a model: weight_map", "a folder of a run"),
    ),
    "attribute": ("checkpoints/*/state.json: bit_generator",),
    "code": ("stage.json: configuration_type", "stage.json: work", "study.json: page", "a script of --train-py"),
}
"""What data name, by what becomes of it. A test feeds each field what leads elsewhere, and finds a use in no list."""


@dataclass(frozen=True)
class Name:
    """What JSON, YAML or scripts say of an attribute or code: anybody may have written it.

    It is no text: only its methods make something of it that can be used. Equal to another one of the same text.
    """

    given: object

    @property
    def code(self) -> str:
        """A literal of Python in double quotes, on one line, without anything that cannot be seen."""
        return visible(json.dumps(self.given, ensure_ascii=False))

    def __str__(self) -> str:
        return self.code

    def of(self, table: Mapping[str, Value], what: str) -> Value:
        """What `table` has of this name; BadInput naming `what` it should be."""
        if not isinstance(self.given, str) or self.given not in table:
            raise BadInput(f"{self} is no {what}: one of {', '.join(table)} is")
        return table[self.given]
