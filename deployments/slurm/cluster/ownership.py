"""Check that only this user can have written what is about to run as this user: by owner and mode, up to `/`."""

import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from storage.errors import BadInput


def require_own(paths: Iterable[Path], group: str = "") -> None:
    """BadInput that names the first of `paths`, or of the folders above them, that somebody else may write.

    Somebody else is whoever is neither this user, nor root, nor a member of `group`, where one is named. A group that
    has its owner's name and no other member is the owner. A folder with the sticky bit, such as /tmp, may be written by
    all where it lies above: there nobody replaces what is another's. What is not there is passed over.
    """
    asked, places = [path.absolute() for path in paths], dict[Path, None]()
    for path in asked:
        _add_way(path, places)
    for place in places:
        try:
            status, link = place.stat(), place.lstat()
        except FileNotFoundError:
            continue
        me = os.geteuid()
        if strangers := [uid for uid in (status.st_uid, link.st_uid) if uid not in (me, 0) and not _is_in(uid, group)]:
            why, mends = f"belongs to {_user(strangers[0])}", f"sudo chown -h {_user(me)}"
        elif status.st_mode & stat.S_ISVTX and place not in asked:
            continue
        elif status.st_mode & stat.S_IWOTH:
            why, mends = "may be written by all", "chmod o-w"
        elif status.st_mode & stat.S_IWGRP and not _is_trusted(place, status, group):
            why, mends = f"may be written by the group {_group(status.st_gid)}", "chmod g-w"
        else:
            continue
        raise BadInput(
            f"{place} {why} ({_user(status.st_uid)}:{_group(status.st_gid)} {stat.filemode(status.st_mode)}), and what "
            f"lies there runs as {_user(me)}: {mends} {shlex.quote(str(place))}, or take another folder; a group that "
            "shares it on purpose is named in the site file (trust_group)"
        )


def _add_way(path: Path, places: dict[Path, None]) -> None:
    """Adds the path, each folder above it, and the same of what links among them lead to."""
    for place in (path, *path.parents):
        if place in places:
            return
        places[place] = None
        if place.is_symlink():
            _add_way(place.parent / place.readlink(), places)


def _is_trusted(place: Path, status: os.stat_result, group: str) -> bool:
    """True where a group that may write is the named one, or nobody but the owner."""
    if group and _group(status.st_gid) == group:
        return True
    try:
        os.getxattr(place, "system.posix_acl_access")
    except OSError:
        return _is_private(status.st_gid, _user(status.st_uid))
    return False  # by an access list others may write too


@cache
def _is_private(gid: int, user: str) -> bool:
    try:
        entry = grp.getgrgid(gid)
    except KeyError:
        return False
    members = {*entry.gr_mem, *(account.pw_name for account in pwd.getpwall() if account.pw_gid == gid)}
    return entry.gr_name == user and members <= {user}


@cache
def _is_in(uid: int, group: str) -> bool:
    try:
        user = pwd.getpwuid(uid)
        return bool(group) and grp.getgrnam(group).gr_gid in os.getgrouplist(user.pw_name, user.pw_gid)
    except KeyError:
        return False


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
