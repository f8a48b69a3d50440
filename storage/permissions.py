"""Permissions of what a study keeps, towards other users of the machine."""

import os
import stat
from pathlib import Path
from typing import Literal, get_args

from storage.errors import BadInput

Permissions = Literal["umask", "group", "private"]
"""Permissions, the most open first; `umask` leaves files and folders as the machine makes them."""
_WITHOUT = {"umask": 0, "group": 0o027, "private": 0o077}


def strictest(*permissions: Permissions) -> Permissions:
    return max(permissions, key=get_args(Permissions).index)


def close_to_others(permissions: Permissions, *folders: Path) -> None:
    """Closes these folders (made if need be), and all that this process and its children write from now on.

    Raises BadInput for a folder of another person.
    """
    if not (without := _WITHOUT[permissions]):
        return
    os.umask(without)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & without:
            try:
                folder.chmod(mode & ~without)
            except PermissionError:
                raise BadInput(
                    f"{folder} is another person's and open to others, so it cannot be made {permissions}, as "
                    "`permissions` asks (site file, or execution.permissions): take another name or root"
                ) from None


def open_to_all(folder: Path) -> bool:
    """True if everybody on the machine can list the folder, or the nearest existing one above it."""
    nearest = next(place for place in (folder, *folder.parents) if place.is_dir())
    return all(place.stat().st_mode & stat.S_IXOTH for place in (nearest, *nearest.parents)) and bool(
        nearest.stat().st_mode & stat.S_IROTH
    )
