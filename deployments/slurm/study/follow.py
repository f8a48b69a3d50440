"""A study on SLURM is started by a person, followed until nothing is under way, and kept going by `advance`."""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from deployments.dag.walk import Handle
from deployments.slurm.cluster.site import Site
from deployments.slurm.study import study as study_file
from deployments.slurm.study.standings import Look, Standing, Standings, Told, nobody
from deployments.slurm.study.study import SlurmStudy
from deployments.views.index import completed, leave_for_people
from storage import durable
from storage.errors import BadInput
from storage.inside import Outside, copy
from tasks.stage.outcome import AWAITING_RETRY, COMPLETED, PrefectState, state_of_study

LOG = logging.getLogger("ratchet.slurm")
POLL_SECONDS = 5.0
BUSY_SECONDS = 900.0
"""Time that a start that comes no further goes on trying with a server that is busy or away, beside what Prefect's
client does itself."""
MOST_SECONDS = 60.0
"""Between two such tries; the first comes after POLL_SECONDS."""


class Host(ABC):
    """Who has the runs of stages and submits their jobs: Prefect and its worker, or the engine of this process."""

    @abstractmethod
    def looking(self, slurm: SlurmStudy, starts: bool, **how: Any) -> AbstractContextManager[Look]:
        """A look at the study, which `starts` what is ready; `how` as for `Look`."""

    @abstractmethod
    def require_runnable(self, slurm: SlurmStudy) -> None:
        """BadInput with what stands against the study's jobs."""

    @abstractmethod
    def withdraw(self, slurm: SlurmStudy, why: str) -> None:
        """Cancels the runs of the study's stages that have no job."""

    @abstractmethod
    def cancel(self, slurm: SlurmStudy) -> None:
        """Cancels all runs of the study, but for those of stages that another one wants."""

    def away(self, error: Exception) -> str:
        """What is away, where the next look may go well; else empty."""
        return f"polled in vain: {error!r}" if isinstance(error, OSError) else ""


class Follower:
    """Starts what is ready of one study, again and again, with the site as it was at first: an edit of it ends nothing.

    Jobs run the source as it was when a person last started the study, whoever starts them.
    """

    def __init__(
        self,
        host: Host,
        slurm: SlurmStudy,
        kept: Callable[[SlurmStudy], None] = lambda slurm: None,
        is_kept: bool = False,
    ) -> None:
        """`kept` is called when the study is kept, before any of its stages is started; `is_kept`: the start that a
        person gave has done that."""
        self.host, self._slurm, self._when_kept = host, slurm, kept
        self._kept = is_kept
        self._begun: set[str] = set()
        """Fingerprints of the stages for which the start has done what a person wants: where a busy server breaks it
        off, it goes on with the others."""

    def start(self, told: Told = nobody) -> Standings:
        """Starts as a person does: what failed or was cancelled begins again.

        The study is kept below the root, where `advance` and the jobs read it; before that, BadInput says what stands
        against it, and nothing of what is under way has changed.
        """
        if not self._kept:
            self.host.require_runnable(self._slurm)
            self._slurm.keep()
            self._when_kept(self._slurm)
            self._kept = True
        elif study_file.stopped(self._slurm.file).exists():  # while the server was busy
            return standings(self.host, self._slurm, told)

        def begun(handle: Handle, standing: Standing) -> None:
            self._begun.add(handle.run.fingerprint)
            told(handle, standing)

        return _advanced(self.host, self._slurm, person=True, told=begun, begun=frozenset(self._begun))

    def advance(self, told: Told = nobody) -> Standings:
        """Starts what became ready since; what failed stays so, and nothing is started of a study that was cancelled.

        BadInput when the study's file is gone.
        """
        if not self._slurm.file.exists():
            raise BadInput(study_file.GONE.format(self._slurm.file))
        self._slurm.walk.check_markers()
        if study_file.stopped(self._slurm.file).exists():
            if not self._slurm.handles[-1].finished:
                self.host.cancel(self._slurm)  # whoever cancelled it may not have known the server
            return standings(self.host, self._slurm, told)
        return _advanced(self.host, self._slurm, person=False, told=told)


def advance_kept(host: Host, file: Path, site: Site, root: Path) -> Standings:
    """Starts what is ready of a study that is kept. BadInput when it is not the one that a person started."""
    slurm = SlurmStudy.kept(file, site, root)
    slurm.walk.check_markers()  # one that a compute node wrote a moment ago, too
    return _advanced(host, slurm, person=False)


def standings(host: Host, slurm: SlurmStudy, told: Told = nobody) -> Standings:
    """How every stage stands; starts and writes nothing."""
    with host.looking(slurm, starts=False, told=told) as look:
        return _all(slurm, look)


def _advanced(host: Host, slurm: SlurmStudy, person: bool, told: Told = nobody, **how: Any) -> Standings:
    with host.looking(slurm, starts=True, person=person, told=told, **how) as look:
        stages = _all(slurm, look)
    if refused := [handle.label for handle in stages.handles if handle.refusal]:
        host.withdraw(slurm, f"{refused[0]} cannot use what is finished: why stands there")
    _keep_results(slurm.handles[-1], slurm.site)
    if (last := stages.handles[-1]).finished:
        leave_for_people(last)
    if all(handle.finished for handle in slurm.handles):
        study_file.stopped(slurm.file).touch()
    return stages


def _all(slurm: SlurmStudy, look: Look) -> Standings:
    """Every stage, and the table of a sweep without the cells that stopped, when nothing else is left to do."""
    stages = look.at(slurm.handles)
    if not stages.under_way and (table := slurm.page.sweep_without_stopped(slurm.study, slurm.walk)):
        look.at([table])
    return stages


def follow(
    follower: Follower, changed: Told, once: bool = False, polled: Callable[[Standings], None] = lambda stages: None
) -> tuple[PrefectState, str]:
    """Starts the study and polls until it is finished or nothing is under way; its state, and what stopped it.

    `changed` gets each change of a stage as soon as it is found, `polled` what each poll found. With `once` it returns
    when what is ready was started, or when it came no further for BUSY_SECONDS.
    """
    known: dict[str, Standing] = {}
    host, poll, since, tries = follower.host, follower.start, time.monotonic(), 0

    def tell(handle: Handle, now: Standing) -> None:
        nonlocal since
        if known.get(handle.run.fingerprint) != now:
            changed(handle, now)
            known[handle.run.fingerprint], since = now, time.monotonic()

    while True:
        try:
            stages = poll(tell)
        except Exception as error:  # the server or the disk is away: the jobs go on
            if not (words := host.away(error)) or (once and isinstance(error, OSError)):
                raise
            started = sum(standing.stand in ("under way", "finished") for standing in known.values())
            if once and time.monotonic() - since > BUSY_SECONDS:
                return AWAITING_RETRY, f"{words}; {started} stages are started or finished"
            wait = min(MOST_SECONDS, POLL_SECONDS * 2**tries) if once else POLL_SECONDS
            LOG.warning("%s; %d stages are started or finished; it goes on in %.0f s", words, started, wait)
            time.sleep(wait)
            tries += 1
            continue
        poll, tries = follower.advance, 0
        polled(stages)
        if once or not stages.under_way:
            return final_state(stages)
        time.sleep(POLL_SECONDS)


def final_state(stages: Standings) -> tuple[PrefectState, str]:
    """The study's state, and what stopped it."""
    each = [(handle, stages.standing(handle)) for handle in stages.handles]
    state = state_of_study(standing.state for _, standing in each)
    if state == COMPLETED:
        return state, completed(stages.handles)
    stopped = [pair for pair in each if pair[1].stand in ("failed", "cancelled")]
    return state, "; ".join(f"{handle.label}: {standing.message}" for handle, standing in stopped) or "unfinished"


def _keep_results(last: Handle, site: Site) -> None:
    """Copies what the study's last stage made, and its marker, to the site's folder for results; once.

    When that folder cannot be written, a warning says so: the results are where they were made.
    """
    if not site.results or not last.finished:
        return
    target = Path(site.results) / f"{last.run.study}-{last.run.fingerprint[:12]}"
    if target.exists():
        return
    marker = last.run.marker_file
    try:
        with durable.new_directory(target) as new:
            for name, described in durable.read_json(marker)["outputs"].items():
                copy(last.run.path, name, new, described["sha256"])
            copy(last.run.path, marker.name, new)
    except (OSError, Outside) as error:
        LOG.warning("the results could not be copied to %s (results in the site file): %s", target, error)
    else:
        LOG.info("results copied to %s", target)
