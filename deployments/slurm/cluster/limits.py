"""How many jobs SLURM takes of this user at once, read from its accounting: beyond it, sbatch refuses."""

from __future__ import annotations

import getpass
import logging
import subprocess
from dataclasses import dataclass

from deployments.slurm.cluster.partitions import Run, lines_of


@dataclass(frozen=True)
class SubmitLimit:
    """At most so many jobs of the user are queued or running at once."""

    jobs: int
    words: str
    """Whose limit it is, for a person."""


def submit_limit(account: str = "", qos: str = "", run: Run = subprocess.run) -> SubmitLimit | None:
    """The limit for jobs with this account and QOS (empty: the user's defaults); None where there is none, or no
    accounting answers.

    As SLURM does, a QOS's limit is taken before that of the user's association (slurm.schedmd.com/resource_limits).
    Of several associations the widest counts: a job too many is only refused, and tried again. `run` is called as
    `subprocess.run` is.
    """
    user = getpass.getuser()
    fields = "format=account,defaultqos,maxsubmitjobs"
    found = _rows(run, 3, "sacctmgr", "-nP", "show", "associations", f"user={user}", fields)
    mine = [row for row in found if row[0] == account] or found
    default = next((row[1] for row in mine if row[1]), "normal")
    limits = _rows(run, 2, "sacctmgr", "-nP", "show", "qos", "format=name,maxsubmitjobsperuser")
    for name, limit in limits:
        if name == (qos or default) and limit.isdecimal():
            return SubmitLimit(int(limit), f"the QOS {name}")
    of_user = [int(row[2]) if row[2].isdecimal() else None for row in mine]
    known = [limit for limit in of_user if limit is not None]
    return SubmitLimit(max(known), f"the account {mine[0][0]}") if known and len(known) == len(of_user) else None


def _rows(run: Run, width: int, *command: str) -> list[list[str]]:
    rows = [line.split("|") for line in lines_of(run, *command, level=logging.DEBUG)]
    return [row for row in rows if len(row) == width]
