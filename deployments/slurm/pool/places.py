"""How many of the pool's runs have a job at once: as many as the site file and SLURM allow.

Prefect counts and chooses: its limit of the work pool is kept at that number, and a run beyond it stays scheduled,
first come first served. Without it, SLURM would refuse the jobs that are too many, each again every few minutes.
The number that was set is kept in a file: a worker that is started again takes back a limit that was Ratchet's own, and
leaves alone one that a person gave the pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from deployments.slurm.cluster.limits import SubmitLimit, submit_limit
from deployments.slurm.cluster.site import Site
from deployments.slurm.pool.reconcile import Run, SetState
from storage import durable

LOG = logging.getLogger("ratchet.slurm")
WAITS = "AwaitingConcurrencySlot"
"""Prefect's own name for it."""
ASKED_EVERY_SECONDS = 300.0
TOLD_AT_ONCE = 20
"""So many are told in one poll, two requests each; it must not hold up the jobs."""


class Runs(Protocol):
    """What is needed of Prefect."""

    def allow(self, at_once: int | None) -> None:
        """Gives out a run only while fewer than this are under way; None: always."""

    def waiting(self) -> list[Run]:
        """The pool's runs that are due and have no job yet, first come first."""

    def set_state(self, wish: SetState) -> bool:
        """Sets the state if the run is still in the one that the wish was made over."""


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
        self._words = ""
        self.are_kept = False
        """Whether Prefect knows the limit: before, it would give out all runs."""

    def keep(self, site: Site, others: int) -> None:
        """Tells Prefect how many may be under way.

        `others`: the user's jobs that are none of this pool's; SLURM counts them too. A limit that a person gave the
        pool stands where neither site nor SLURM has one.
        """
        found = []
        if site.max_jobs is not None:
            found.append((site.max_jobs, f"{site.max_jobs} jobs at once (max_jobs, site file)"))
        if limit := self._slurms(site):
            found.append((max(0, limit.jobs - others), f"{limit.jobs} jobs of yours at once ({limit.words})"))
        allowed, self._words = min(found) if found else (None, "")
        known = self._set_before()
        if allowed != known or (allowed is not None and not self.are_kept):
            self.are_kept = False
            if allowed is not None:
                durable.write_json(self._file, allowed)  # first: what was set must be known as Ratchet's own
            self._runs.allow(allowed)
            if allowed is None:
                self._file.unlink()
            LOG.info("jobs of this pool at once: %s", "any number" if allowed is None else f"at most {allowed}")
        self._allowed, self.are_kept = allowed, True

    def tell(self, under_way: int) -> None:
        """Tells those that wait for a place why; `under_way`: the pool's runs with a job or about to have one."""
        if self._allowed is None or under_way < self._allowed:
            return
        message = f"waits for a place: at most {self._words}"
        untold = [run for run in self._runs.waiting() if (run.name, run.message) != (WAITS, message)]
        for run in untold[:TOLD_AT_ONCE]:
            since = -run.waited_seconds  # it keeps its turn
            self._runs.set_state(SetState(run, "SCHEDULED", WAITS, message, since, origin="put off"))

    def _set_before(self) -> int | None:
        return int(durable.read_json(self._file)) if self._file.exists() else None

    def _slurms(self, site: Site) -> SubmitLimit | None:
        asked = (str(site.resources.get("account") or ""), str(site.resources.get("qos") or ""))
        now = self._clock()
        if self._asked is None or self._asked[1] != asked or now - self._asked[0] >= ASKED_EVERY_SECONDS:
            self._asked = (now, asked, self._of_slurm(*asked))
        return self._asked[2]
