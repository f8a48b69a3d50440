"""Whether a Prefect server may stand, asked without Prefect, which takes a second to import."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from storage.errors import BadInput

if TYPE_CHECKING:
    from deployments.prefect.embedded import Server

NAMING = ("PREFECT_API_URL", "PREFECT_PROFILE", "DATABASE_CONNECTION_URL")
"""Beginnings and ends of variables and settings by which a server, or its database, is another than the usual one."""
FILES = (".env", "prefect.toml", "pyproject.toml")  # where Prefect reads settings in the folder of a command


def may_stand() -> bool:
    """False where surely no server of this user's does; else Prefect is to be asked (`embedded.server_here`)."""
    database = _home() / "prefect.db"
    return may_be_named() or (database.is_file() and any(True for _ in with_open(database)))


def may_be_named() -> bool:
    """False where surely no server is configured; else Prefect is to be asked (`embedded.configured`)."""
    by_variable = any(value and _names_one(name) for name, value in os.environ.items())
    files = (_home() / "profiles.toml", *map(Path, FILES))
    return "prefect" in sys.modules or by_variable or any(_names_one(_text(file)) for file in files)


def configured() -> "Server | None":
    """The server that is named for Prefect's clients."""
    if not may_be_named():
        return None
    from deployments.prefect import embedded

    return embedded.configured()


def require_server(wanted_by: str = "") -> None:
    """BadInput where no server is named, or it does not answer: jobs outlive a command, so what shows them must too."""
    if not (server := configured()):
        first = "" if wanted_by else "add --detach (a small job follows the study) or --wait; without these, "
        raise BadInput(
            f"{first}{wanted_by or '--dispatch slurm'} needs a Prefect server that stays, and PREFECT_API_URL, which "
            "says where it is: docs/cluster.md (A server that stays)"
        )
    from deployments.prefect import embedded

    embedded.require_answer(server)


def _home() -> Path:
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()


def _names_one(text: str) -> bool:
    return any(name in text for name in NAMING) or "[tool.prefect" in text or "[api]" in text


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def with_open(file: Path) -> Iterator[tuple[psutil.Process, dict[str, str]]]:
    """The processes of this user that have this very file open, and their environments.

    None of another network, whose ports are not ours; and none of another person, who would be sent what we do.
    """
    wanted = file.stat()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # another person's, or gone by now
            if process.uids().real == os.getuid() and _has_open(process.pid, wanted):
                yield process, process.environ()


def _has_open(process: int, wanted: os.stat_result) -> bool:
    folder = Path(f"/proc/{process}")
    for number in (folder / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            if os.path.samestat(number.stat(), wanted):
                return (folder / "ns/net").samefile("/proc/self/ns/net")
    return False
