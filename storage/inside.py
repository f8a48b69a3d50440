"""A name that stands in data becomes a path only inside the folder that it is of, and never through a link.

Markers, results, manifests and stage.json name files, and anybody may have written them.
"""

from __future__ import annotations

import stat
from pathlib import Path, PurePosixPath
from typing import Any

from storage.errors import BadInput


def inside(directory: Path, name: Any, folder: bool = False) -> Path:
    """The regular file (or, with `folder`, the folder) that is called `name` in `directory`.

    `directory` itself may be reached through links; below it nothing may be one. BadInput says what is wrong with the
    name, FileNotFoundError that nothing is there.
    """
    path, mode = directory, stat.S_IFDIR
    for part in parts(name):
        if not stat.S_ISDIR(mode):
            raise BadInput(f"{name} leads through {path}, which is no folder")
        path /= part
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            raise BadInput(f"{name} leads through {path}, which is a symbolic link: put there what it leads to")
    if not (stat.S_ISDIR(mode) if folder else stat.S_ISREG(mode)):
        raise BadInput(f"{name} is no {'folder' if folder else 'regular file'} in {directory}")
    return path


def parts(name: Any) -> tuple[str, ...]:
    """The parts of a relative name that leads nowhere else. BadInput where it is none."""
    if not isinstance(name, str):
        raise BadInput(f"{name!r} names no file: a name is text")
    path = PurePosixPath(name)
    if not path.parts or path.is_absolute() or ".." in path.parts or "\0" in name:
        raise BadInput(f"{name!r} names nothing inside its folder: a name is relative and has no ..")
    return path.parts
