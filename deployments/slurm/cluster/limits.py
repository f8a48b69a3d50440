"""How many jobs SLURM takes of this user at once, read from its accounting: beyond it, sbatch refuses."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from typing import Literal

from deployments.slurm.cluster.client import Job, NotInstalled, Unreachable, call
from deployments.slurm.cluster.partitions import Run

CALL_SECONDS = 15.0
"""The worker watches no job meanwhile."""


class NoAnswer(Exception):
    """The accounting did not say what the limit is, which is not the same as that there is none."""


@dataclass(frozen=True)
class SubmitLimit:
    """At most so many jobs of the user with this QOS, or with this account, are queued or running at once."""

    jobs: int
    of: Literal["QOS", "account"]
    name: str

    def counts(self, job: Job) -> bool:
        """Whether SLURM counts the job towards this limit."""
        return (job.qos if self.of == "QOS" else job.account).lower() == self.name.lower()


def submit_limit(account: str = "", qos: str = "", run: Run = call) -> SubmitLimit | None:
    """The limit for jobs with this account and QOS (empty: the user's defaults); None where there is none, or no
    accounting. Raises NoAnswer.

    As SLURM does, a QOS's limit is taken before that of the user's association (slurm.schedmd.com/resource_limits).
    Of several associations the widest counts: a job too many is only refused, and tried again.
    """
    user = pwd.getpwuid(os.geteuid()).pw_name  # as SLURM knows who submits: LOGNAME may name somebody else
    fields = "format=account,defaultqos,maxsubmitjobs"
    found = _rows(run, 3, "sacctmgr", "-nP", "show", "associations", f"user={user}", fields)
    mine = [row for row in found if row[0] == account] or found
    default = next((row[1] for row in mine if row[1]), "normal")
    limits = _rows(run, 2, "sacctmgr", "-nP", "show", "qos", "format=name,maxsubmitjobsperuser")
    for name, limit in limits:
        if name == (qos or default) and limit.isdecimal():
            return SubmitLimit(int(limit), "QOS", name)
    known = [(int(row[2]), row[0]) for row in mine if row[2].isdecimal()]
    return SubmitLimit(max(known)[0], "account", max(known)[1]) if known and len(known) == len(mine) else None


def _rows(run: Run, width: int, *command: str) -> list[list[str]]:
    try:
        done = run([*command], seconds=CALL_SECONDS)
    except NotInstalled:
        return []  # a cluster without accounting
    except Unreachable as error:
        raise NoAnswer(str(error)) from None
    if done.returncode and "not running a supported accounting_storage" not in done.stdout + done.stderr:
        raise NoAnswer(done.stderr.strip() or f"{command[0]} failed with exit code {done.returncode}")
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == width]
