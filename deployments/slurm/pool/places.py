"""How many of the runs of a root's queue have a job at once: as many as the site file and SLURM allow.

Prefect counts and chooses: its limit of the queue is kept at that number, and a run beyond it stays scheduled,
first come first served. Without it, SLURM would refuse the jobs that are too many, each again every few minutes.
The number that was set is kept in a file: a worker that is started again takes back a limit that was Ratchet's own, and
leaves alone one that a person gave the queue.
"""

import logging
import os
import pwd
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deployments.slurm.cluster.client import Done, Job, NotInstalled, Unreachable, call
from deployments.slurm.cluster.site import Site
from deployments.slurm.pool.reconcile import Runs, SetState
from storage import durable

LOG = logging.getLogger("ratchet.slurm")
WAITS = "AwaitingConcurrencySlot"
"""Prefect's own name for it."""
UNDER_WAY = ("PENDING", "RUNNING")
"""Types of state that Prefect counts towards the limit of a work pool."""
ASKED_EVERY_SECONDS = 300.0
CALL_SECONDS = 15.0
"""For SLURM's accounting: the worker watches no job meanwhile."""
TOLD_AT_ONCE = 20
"""Runs updated per poll (several requests each); kept small so polling stays fast."""


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
    """Jobs of the pool's runs that are Pending or Running: Prefect counts them itself."""
    uncounted: list[Job] = field(default_factory=list)
    """Jobs of the pool's other runs: a job that is being cancelled has its place until it has ended."""
    others: list[Job] = field(default_factory=list)
    """Jobs of no run of this pool."""


class Places:
    """The places of one pool."""

    def __init__(
        self,
        runs: Runs,
        file: Path,
        of_slurm: Callable[[str, str], SubmitLimit | None] = submit_limit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`file` keeps the limit that was set; `of_slurm` gives SLURM's for an account and a QOS, and is asked every
        few minutes."""
        self._runs, self._file, self._of_slurm, self._clock = runs, file, of_slurm, clock
        self._asked: tuple[float, tuple[str, str], SubmitLimit | None] | None = None
        self._allowed: int | None = None
        self._unknown = False
        """True where SLURM's accounting has not answered yet."""
        self._words = self._said = ""
        self.are_kept = False
        """True where Prefect knows the limit: before, it would give out all runs."""

    def keep(self, site: Site, alive: Alive) -> None:
        """Tells Prefect how many may be under way, unless it knows.

        A limit that a person gave the queue stands where neither site nor SLURM has one.
        """
        self.are_kept = False
        allowed, self._words = self._at_most(site, alive)
        before, now = self._set_before(), self._runs.allowed()
        if allowed is None:
            if before is not None and before == now:
                self._runs.allow(None)
            self._file.unlink(missing_ok=True)
        elif allowed != now:
            if now is not None and now != before and now < allowed:
                LOG.warning("the queue's limit, %d, gives way to: at most %s. For fewer: max_jobs", now, self._words)
            self._note(allowed)  # first: what was set must be known as Ratchet's own
            self._runs.allow(allowed)
        elif before != now:
            self._note(allowed)
        self._allowed, self.are_kept = allowed, True
        number = "any number" if allowed is None else f"at most {allowed}"
        if number != self._said:
            LOG.info("jobs of this pool at once: %s", number)
        self._said = number

    def _at_most(self, site: Site, alive: Alive) -> tuple[int | None, str]:
        """The number that Prefect is to count up to, and whose it is in words.

        Prefect counts all runs of the pool that are under way, and nothing else: so a job that it does not count takes
        a place off, and a run whose job does not count towards SLURM's limit leaves one.
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
        if not limits and self._unknown and (before := self._set_before()) is not None:
            limits.append((before, f"{before} jobs at once, as before: SLURM's accounting does not answer"))
        allowed, words = min(limits, default=(None, ""))
        return (None if allowed is None else max(0, allowed)), words

    def tell(self, under_way: int) -> None:
        """Tells those that wait for a place why; `under_way`: the pool's runs with a job or about to have one."""
        if self._allowed is None or under_way < self._allowed:
            return
        message = f"waits for a place: at most {self._words}"
        untold = [run for run in self._runs.waiting() if (run.name, run.message) != (WAITS, message)]
        for run in untold[:TOLD_AT_ONCE]:
            self._runs.set_state(SetState(run, "SCHEDULED", WAITS, message, origin="put off"))

    def _set_before(self) -> int | None:
        """Limit that Ratchet set last; None when that is not known."""
        try:
            return int(durable.read_json(self._file))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError) as error:
            LOG.warning("%s cannot be read (%s): the queue's limit is taken for a person's", self._file, error)
            return None

    def _note(self, allowed: int) -> None:
        try:
            durable.write_json(self._file, allowed)
        except OSError as error:  # a full disk keeps no jobs from SLURM
            LOG.warning("%s cannot be written (%s): the queue's limit may be taken for a person's", self._file, error)

    def _slurms(self, site: Site) -> SubmitLimit | None:
        """SLURM's limit; the last one that is known, while the accounting does not answer."""
        asked = (str(site.resources.get("account") or ""), str(site.resources.get("qos") or ""))
        now = self._clock()
        if self._asked is None or self._asked[1] != asked or now - self._asked[0] >= ASKED_EVERY_SECONDS:
            last = self._asked[2] if self._asked and self._asked[1] == asked else None
            try:
                self._asked, self._unknown = (now, asked, self._of_slurm(*asked)), False
            except NoAnswer as error:
                LOG.warning("SLURM's accounting does not say how many jobs it takes of you (%s)", error)
                self._asked, self._unknown = (now, asked, last), last is None
        return self._asked[2]
