"""A study on SLURM is started by a person, followed until nothing is under way, and kept going by `advance`."""

import logging
import time
from collections.abc import Callable
from pathlib import Path

import httpx
from prefect.client.orchestration import get_client
from prefect.states import State

from deployments.dag.walk import Handle
from deployments.prefect.flow_run import prefect_state
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Site
from deployments.slurm.pool.runs import passes
from deployments.slurm.study import study as study_file
from deployments.slurm.study.cancel import cancel_runs, withdraw
from deployments.slurm.study.preflight import require_runnable, warn_of_idle_pools
from deployments.slurm.study.standings import Look, Standing, Standings, Starter, Told, nobody
from deployments.slurm.study.study import SlurmStudy
from deployments.views.index import completed, leave_for_people
from storage import durable
from storage.errors import BadInput
from storage.inside import Outside, copy
from tasks.stage.outcome import AWAITING_RETRY, COMPLETED, state_of_study

LOG = logging.getLogger("ratchet.slurm")
POLL_SECONDS = 5.0
BUSY_SECONDS = 900.0
"""Time that a start that comes no further goes on trying with a server that is busy or away, beside what Prefect's
client does itself."""
MOST_SECONDS = 60.0
"""Between two such tries; the first comes after POLL_SECONDS."""


class Follower:
    """Starts what is ready of one study, again and again, with the site as it was at first: an edit of it ends nothing.

    Jobs run the source as it was when a person last started the study, whoever starts them.
    """

    def __init__(
        self, slurm: SlurmStudy, kept: Callable[[SlurmStudy], None] = lambda slurm: None, is_kept: bool = False
    ) -> None:
        """`kept` is called when the study is kept, before any of its stages is started; `is_kept`: the start that a
        person gave has done that."""
        self._slurm, self._when_kept = slurm, kept
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
            require_runnable(self._slurm)
            with get_client(sync_client=True) as client:
                warn_of_idle_pools(client, self._slurm.site)
            self._slurm.keep()
            self._when_kept(self._slurm)
            self._kept = True
        elif study_file.stopped(self._slurm.file).exists():  # while the server was busy
            return standings(self._slurm, told)

        def begun(handle: Handle, standing: Standing) -> None:
            self._begun.add(handle.run.fingerprint)
            told(handle, standing)

        return _advanced(self._slurm, person=True, told=begun, begun=frozenset(self._begun))

    def advance(self, told: Told = nobody) -> Standings:
        """Starts what became ready since; what failed stays so, and nothing is started of a study that was cancelled.

        BadInput when the study's file is gone.
        """
        if not self._slurm.file.exists():
            raise BadInput(study_file.GONE.format(self._slurm.file))
        self._slurm.walk.check_markers()
        if study_file.stopped(self._slurm.file).exists():
            if not self._slurm.handles[-1].finished:
                cancel_runs(self._slurm, [self._slurm.file])  # whoever cancelled it may not have known the server
            return standings(self._slurm, told)
        return _advanced(self._slurm, person=False, told=told)


def advance_kept(file: Path, site: Site, root: Path) -> Standings:
    """Starts what is ready of a study that is kept. BadInput when it is not the one that a person started."""
    slurm = SlurmStudy.kept(file, site, root)
    slurm.walk.check_markers()  # one that a compute node wrote a moment ago, too
    return _advanced(slurm, person=False)


def standings(slurm: SlurmStudy, told: Told = nobody) -> Standings:
    """How every stage stands; starts and writes nothing."""
    with get_client(sync_client=True) as client:
        stages = _all(slurm, Look(client, SlurmCommands(), told=told))
        warn_of_idle_pools(client, slurm.site)
    return stages


def _advanced(slurm: SlurmStudy, person: bool, told: Told = nobody, begun: frozenset[str] = frozenset()) -> Standings:
    with get_client(sync_client=True) as client:
        starter = Starter(client, slurm.site, slurm.file, slurm.kept_source())
        stages = _all(slurm, Look(client, SlurmCommands(), starter=starter, person=person, told=told, begun=begun))
    if refused := [handle.label for handle in stages.handles if handle.refusal]:
        withdraw(slurm, f"{refused[0]} cannot use what is finished: why stands there")
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
) -> State[None]:
    """Starts the study and polls until it is finished or nothing is under way.

    `changed` gets each change of a stage as soon as it is found, `polled` what each poll found. With `once` it returns
    when what is ready was started, or when it came no further for BUSY_SECONDS.
    """
    known: dict[str, Standing] = {}
    poll, since, tries = follower.start, time.monotonic(), 0

    def tell(handle: Handle, now: Standing) -> None:
        nonlocal since
        if known.get(handle.run.fingerprint) != now:
            changed(handle, now)
            known[handle.run.fingerprint], since = now, time.monotonic()

    while True:
        try:
            stages = poll(tell)
        except (httpx.HTTPError, OSError) as error:  # the server or the disk is away: the jobs go on
            if not (passes(error) if isinstance(error, httpx.HTTPError) else not once):
                raise
            started = sum(standing.stand in ("under way", "finished") for standing in known.values())
            if once and time.monotonic() - since > BUSY_SECONDS:
                return prefect_state(AWAITING_RETRY, f"{_in_vain(error)}; {started} stages are started or finished")
            wait = min(MOST_SECONDS, POLL_SECONDS * 2**tries) if once else POLL_SECONDS
            LOG.warning("%s; %d stages are started or finished; it goes on in %.0f s", _in_vain(error), started, wait)
            time.sleep(wait)
            tries += 1
            continue
        poll, tries = follower.advance, 0
        polled(stages)
        if once or not stages.under_way:
            return final_state(stages)
        time.sleep(POLL_SECONDS)


def _in_vain(error: Exception) -> str:
    status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else None
    return f"the Prefect server is busy (HTTP {status})" if status else f"polled in vain: {error!r}"


def final_state(stages: Standings) -> State[None]:
    """The study's state, and what stopped it."""
    each = [(handle, stages.standing(handle)) for handle in stages.handles]
    state = state_of_study(standing.state for _, standing in each)
    if state == COMPLETED:
        return prefect_state(state, completed(stages.handles))
    stopped = [pair for pair in each if pair[1].stand in ("failed", "cancelled")]
    message = "; ".join(f"{handle.label}: {standing.message}" for handle, standing in stopped)
    return prefect_state(state, message or "unfinished")


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
