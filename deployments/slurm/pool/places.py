"""How many of the runs of a root have a job at once: as many as the site file and SLURM allow.

A run beyond that stays scheduled, first come first served. Without it, SLURM would refuse the jobs that are too many,
each again every few minutes.
"""

import logging
import os
import pwd
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from deployments.slurm.cluster.client import Done, Job, NotInstalled, Unreachable, call
from deployments.slurm.cluster.site import Site
from deployments.slurm.pool.reconcile import SetState
from deployments.slurm.pool.records import Records

LOG = logging.getLogger("ratchet.slurm")
WAITS = "AwaitingPlace"
UNDER_WAY = ("PENDING", "RUNNING")
"""Types of state of the runs that take a place."""
ASKED_EVERY_SECONDS = 300.0
CALL_SECONDS = 15.0
"""For SLURM's accounting: no job is watched meanwhile."""


class NoAnswer(Exception):
    """The accounting did not say what the limit is, which is not the same as that there is none."""


@dataclass(frozen=True)
class SubmitLimit:
    """At most so many jobs of the user with this QOS, or with this account, are queued or running at once."""

    jobs: int
    of: Literal["QOS", "account"]
    name: str

    def counts(self, job: Job) -> bool:
        """True where SLURM counts the job towards this limit."""
        return (job.qos if self.of == "QOS" else job.account).lower() == self.name.lower()


def submit_limit(account: str = "", qos: str = "", ask: Callable[..., Done] = call) -> SubmitLimit | None:
    """The limit for jobs with this account and QOS (empty: the user's defaults); None where there is none, or no
    accounting. Raises NoAnswer.

    As SLURM does, a QOS's limit is taken before that of the user's association (slurm.schedmd.com/resource_limits).
    Of several associations the widest counts: a job too many is only refused, and tried again.
    """
    user = pwd.getpwuid(os.geteuid()).pw_name  # SLURM's name of who submits: LOGNAME may name somebody else
    fields = "format=account,defaultqos,maxsubmitjobs"
    rows = _rows(ask, 3, "sacctmgr", "-nP", "show", "associations", f"user={user}", fields)
    mine = [row for row in rows if row[0] == account] or rows
    default = next((row[1] for row in mine if row[1]), "normal")
    limits = _rows(ask, 2, "sacctmgr", "-nP", "show", "qos", "format=name,maxsubmitjobsperuser")
    for name, limit in limits:
        if name == (qos or default) and limit.isdecimal():
            return SubmitLimit(int(limit), "QOS", name)
    known = [(int(row[2]), row[0]) for row in mine if row[2].isdecimal()]
    return SubmitLimit(max(known)[0], "account", max(known)[1]) if known and len(known) == len(mine) else None


def _rows(ask: Callable[..., Done], width: int, *command: str) -> list[list[str]]:
    try:
        done = ask([*command], seconds=CALL_SECONDS)
    except NotInstalled:
        return []  # a cluster without accounting
    except Unreachable as error:
        raise NoAnswer(str(error)) from None
    if done.returncode and "not running a supported accounting_storage" not in done.stdout + done.stderr:
        raise NoAnswer(done.stderr.strip() or f"{command[0]} failed with exit code {done.returncode}")
    rows = [line.split("|") for line in done.stdout.splitlines()]
    return [row for row in rows if len(row) == width]


@dataclass(frozen=True)
class Alive:
    """The user's jobs that are queued or running."""

    counted: list[Job] = field(default_factory=list)
    """Jobs of runs that are Pending or Running."""
    uncounted: list[Job] = field(default_factory=list)
    """Jobs of other runs: a job that is being cancelled has its place until it has ended."""
    others: list[Job] = field(default_factory=list)
    """Jobs of no run of this root."""


class Places:
    """The places of one root."""

    def __init__(
        self,
        records: Records,
        of_slurm: Callable[[str, str], SubmitLimit | None] = submit_limit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`of_slurm` gives SLURM's limit for an account and a QOS, and is asked every few minutes."""
        self._records, self._of_slurm, self._clock = records, of_slurm, clock
        self._asked: tuple[float, tuple[str, str], SubmitLimit | None] | None = None
        self._words = self._shown = ""
        self.allowed: int | None = 0
        """Number of runs that may be under way, None: any number; 0 before SLURM was asked."""

    def keep(self, site: Site, alive: Alive) -> None:
        """Finds how many may be under way now."""
        self.allowed, self._words = self._at_most(site, alive)
        number = "any number" if self.allowed is None else f"at most {self.allowed}"
        if number != self._shown:
            LOG.info("jobs at once below this root: %s", number)
        self._shown = number

    def _at_most(self, site: Site, alive: Alive) -> tuple[int | None, str]:
        """The number of runs that may be under way, and whose it is in words.

        Runs are counted that are under way, and nothing else: so a job of no such run takes a place off, and a run
        whose job does not count towards SLURM's limit leaves one.
        """
        limits = []
        if site.max_jobs is not None:
            words = f"{site.max_jobs} jobs at once (max_jobs, site file)"
            limits.append((site.max_jobs - len(alive.uncounted), words))
        if limit := self._slurms(site):
            taken = sum(map(limit.counts, [*alive.uncounted, *alive.others]))
            elsewhere = sum(not limit.counts(job) for job in alive.counted)
            words = f"{limit.jobs} jobs of yours at once (the {limit.of} {limit.name})"
            limits.append((limit.jobs - taken + elsewhere, words))
        allowed, words = min(limits, default=(None, ""))
        return (None if allowed is None else max(0, allowed)), words

    def tell(self, under_way: int) -> None:
        """Tells those that wait for a place why; `under_way`: the runs with a job or about to have one."""
        if self.allowed is None or under_way < self.allowed or not self._words:
            return
        message = f"waits for a place: at most {self._words}"
        for run in self._records.waiting():
            if (run.name, run.message) != (WAITS, message):
                self._records.set_state(SetState(run, "SCHEDULED", WAITS, message, origin="put off"))

    def _slurms(self, site: Site) -> SubmitLimit | None:
        """SLURM's limit; the last one that is known, while the accounting does not answer."""
        asked = (str(site.resources.get("account") or ""), str(site.resources.get("qos") or ""))
        now = self._clock()
        if self._asked is None or self._asked[1] != asked or now - self._asked[0] >= ASKED_EVERY_SECONDS:
            last = self._asked[2] if self._asked and self._asked[1] == asked else None
            try:
                self._asked = (now, asked, self._of_slurm(*asked))
            except NoAnswer as error:
                LOG.warning("SLURM's accounting does not say how many jobs it takes of you (%s)", error)
                self._asked = (now, asked, last)
        return self._asked[2]
