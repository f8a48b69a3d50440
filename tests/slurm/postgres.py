"""A real PostgreSQL of one test's own, as docs/cluster.md starts one: no root, no port, reached by a socket alone."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROGRAMS = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
AS_NOBODY = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
"""PostgreSQL does not run as root."""


class NoPostgres(Exception):
    """PostgreSQL is not installed here."""


@contextmanager
def postgres() -> Iterator[str]:
    """The address of an empty database, as PREFECT_SERVER_DATABASE_CONNECTION_URL takes it. Raises NoPostgres.

    What is installed and does not start is an error, not a reason to skip a test.
    """
    if not PROGRAMS:
        raise NoPostgres("apt-get install postgresql gets the packages")
    root = os.geteuid() == 0
    as_user = ["-U", "ratchet"] if root else []
    folder = Path(tempfile.mkdtemp(prefix="ratchet-pg-"))  # not pytest's: sockets have short paths
    if root:
        shutil.chown(folder, "nobody", "nogroup")

    def run(program: str, *arguments: str) -> None:
        # closed streams: what pg_ctl starts would hold those of the test open
        log = folder.with_suffix(".log").open("ab")
        with log:
            done = subprocess.run(
                [*(AS_NOBODY if root else []), PROGRAMS[-1] / program, *arguments],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", check=False,
            )  # fmt: skip
        if done.returncode:
            raise RuntimeError(folder.with_suffix(".log").read_text()[-2000:])

    data = str(folder / "data")
    try:
        # as root Prefect's server is another user than PostgreSQL, which `peer`, as our pages have it, would refuse
        run("initdb", "-D", data, f"--auth={'trust' if root else 'peer'}", "--encoding=UTF8", *as_user)
        run("pg_ctl", "-D", data, "-w", "-l", f"{data}/log", "-o", f"-k {folder} -c listen_addresses=''", "start")
        try:
            run("createdb", "-h", str(folder), *as_user, "prefect")
            yield f"postgresql+asyncpg://{'ratchet@' if root else ''}/prefect?host={folder}"
        finally:
            run("pg_ctl", "-D", data, "-w", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_suffix(".log").unlink(missing_ok=True)
