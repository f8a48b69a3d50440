"""A study on SLURM: what its page says, dispatched; once (`look`) or until nothing is under way (`follow`)."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import WorkPoolStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.states import Cancelling, State

from deployments.page import Page, load_page, own_files, page_names, stages_of
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.partitions import read_cluster
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.plan import preview
from deployments.slurm.job.preflight import notes, require
from deployments.slurm.job.variables import own_resources, plan_for
from deployments.slurm.pool.runs import NOT_ENDED, passes, runs_tagged
from deployments.slurm.study.advance import Advance, Look, Standing
from deployments.slurm.study.snapshot import stage_source, staged
from deployments.states import prefect_state
from deployments.walk import Handle, Walk
from storage import durable
from storage.errors import BadInput
from tasks.stage.outcome import COMPLETED, state_of_study
from tasks.stage.run import Needs

LOG = logging.getLogger("ratchet.slurm")
LOOK_EVERY_SECONDS = 5.0
SOURCES = ".sources"


def root_of(site: Site, root: str = "") -> Path:
    """The folder of the run directories: absolute, since jobs begin elsewhere."""
    return Path(root or site.root).expanduser().absolute()


def look(page: Page, study: Any, study_file: Path, site: Site, root: Path, person: bool = False) -> Advance:
    """Starts what is ready and returns how every stage stands; the same call again starts nothing twice."""
    walk = Walk(root, study.name, study.execution)
    page.walk(study, walk)
    with get_client(sync_client=True) as client:
        source = stage_source(root / SOURCES, own_files(page, walk.handles))
        stands = Advance(walk, site, study_file, source, client, SlurmCommands(), person)
    keep_results(walk, site)
    return stands


def standings(page: Page, study: Any, site: Site, root: Path) -> Advance:
    """How every stage stands; starts and writes nothing."""
    walk = Walk(root, study.name, study.execution)
    page.walk(study, walk)
    with get_client(sync_client=True) as client:
        stands = Look(walk, site, Path(), Path(), client, SlurmCommands())
        _warn_of_idle_pools(client)
    return stands


def _stage_deployments(client: SyncPrefectClient) -> list[DeploymentResponse]:
    return client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=["stage"])))


def _warn_of_idle_pools(client: SyncPrefectClient) -> None:
    """Without a worker nothing is submitted, and what runs is shown as it was when the last one died."""
    for pool in sorted({one.work_pool_name for one in _stage_deployments(client) if one.work_pool_name}):
        status = client.read_work_pool(pool).status
        if status == WorkPoolStatus.NOT_READY:
            LOG.warning("no worker serves the pool %s: start one with `prefect worker start --pool %s`", pool, pool)
        elif status == WorkPoolStatus.PAUSED:
            LOG.warning("the pool %s is paused: nothing is submitted until `prefect work-pool resume %s`", pool, pool)


def require_runnable(page: Page, study: Any, study_file: Path, site: Site, root: Path) -> None:
    """BadInput when the job of any unfinished stage could not run on this cluster; writes nothing."""
    with get_client(sync_client=True) as client:
        _require_runnable(page, study, study_file, site, root, client)


def _require_runnable(
    page: Page, study: Any, study_file: Path, site: Site, root: Path, client: SyncPrefectClient
) -> None:
    walk = Walk(root, study.name, study.execution)
    page.walk(study, walk)
    own = own_resources(study)
    _require_known_stages(walk, own, site)
    cluster, source = read_cluster(), staged(root / SOURCES, own_files(page, walk.handles))
    noted = set()
    for handle in walk.handles:
        if not handle.finished:
            asked = plan_for(client, site, handle, study_file, source, own).resources
            require(asked, cluster, handle.run.path, handle.stage.name, strict_lead=site.strict_lead)
            noted |= set(notes(asked, cluster))
    for note in sorted(noted):
        LOG.warning("%s", note)
    _warn_of_idle_pools(client)


def _require_known_stages(walk: Walk, own: dict[str, Any], site: Site) -> None:
    """BadInput for resources of a stage that does not exist: they would be given to nobody.

    A site serves several studies, so the stages of any may stand in it, and what several of them need.
    """
    known = {handle.stage.name for handle in walk.handles}
    others = {stage.name for name in page_names() for stage in stages_of(load_page(name))}
    for where, given, names in (
        ("execution.resources", own, known | {"all"}),
        ("site file: stages", site.stages, known | others | {*get_args(Needs)}),
    ):
        if unknown := sorted(set(given) - names):
            raise BadInput(f"{where}.{unknown[0]}: no stage has this name; known: {', '.join(sorted(names))}")


def keep_results(walk: Walk, site: Site) -> None:
    """Copies what the study's last stage made, and its marker, to the site's folder for results; once.

    A folder that cannot be written is only told of: the results are where they were made.
    """
    last = walk.handles[-1]
    if not site.results or not last.finished:
        return
    target = Path(site.results) / f"{walk.study}-{last.run.fingerprint[:12]}"
    if target.exists():
        return
    marker = last.run.marker_file
    try:
        with durable.new_directory(target) as copy:
            for name in [*durable.read_json(marker)["outputs"], marker.name]:
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(last.run.path / name, copy / name)
    except OSError as error:
        LOG.warning("the results could not be copied to %s (results in the site file): %s", target, error)
    else:
        LOG.info("results copied to %s", target)


def scripts(page: Page, study: Any, study_file: Path, site: Site, root: Path) -> Iterator[tuple[Handle, str]]:
    """The exact script of each unfinished stage's next job; then BadInput when one of them could not run here."""
    walk = Walk(root, study.name, study.execution)
    page.walk(study, walk)
    source, own = staged(root / SOURCES, own_files(page, walk.handles)), own_resources(study)
    with get_client(sync_client=True) as client:
        for one in walk.handles:
            if not one.finished:
                yield one, preview(plan_for(client, site, one, study_file, source, own))
        _require_runnable(page, study, study_file, site, root, client)


def cancel(page: Page, study: Any, study_files: set[str], root: Path, spared: set[str]) -> None:
    """Asks Prefect to cancel the study's flow runs under way; the worker ends their jobs.

    Those are the stages of its page as it is now, and what was started of one of its files, when a stage or a package
    has changed since. Stages whose fingerprint is in `spared` go on: another study wants them too.
    """
    walk = Walk(root, study.name, study.execution)
    page.walk(study, walk)
    wanted = {handle.run.fingerprint for handle in walk.handles if not handle.finished}
    with get_client(sync_client=True) as client:
        for run in runs_tagged(client, study.name, NOT_ENDED):
            given, print_ = run.parameters, run.parameters.get("fingerprint")
            ours = print_ in wanted or given.get("study_file") in study_files
            if given.get("root") == str(root) and ours and print_ not in spared:
                try:
                    client.set_flow_run_state(run.id, Cancelling(message="its study was cancelled"))
                except httpx.HTTPError as error:
                    LOG.warning("%s could not be cancelled: %s", run.name, error)


def follow(
    look_again: Callable[[bool], Advance], told: Callable[[Handle, Standing], None], once: bool = False
) -> State[Any]:
    """Looks until the study is finished or nothing is under way; `told` is called with each change of a stage.

    The first look is a person's, the later ones are not: what fails now stays failed.
    """
    known: dict[str, Standing] = {}
    person = True
    while True:
        try:
            walk = look_again(person)
        except (httpx.HTTPError, OSError) as error:  # the server or the disk is away: the jobs go on
            if once or (isinstance(error, httpx.HTTPError) and not passes(error)):
                raise
            LOG.warning("looked in vain: %s", error)
            time.sleep(LOOK_EVERY_SECONDS)
            continue
        person = False
        for handle in walk.handles:
            now = walk.standing(handle)
            if known.get(handle.run.fingerprint) != now:
                known[handle.run.fingerprint] = now
                told(handle, now)
        if once or not any(standing.stand == "under way" for standing in walk.standings.values()):
            return final_state(walk)
        time.sleep(LOOK_EVERY_SECONDS)


def final_state(walk: Advance) -> State[Any]:
    """The study's state, and what stopped it."""
    standings = [(handle, walk.standing(handle)) for handle in walk.handles]
    state = state_of_study(standing.state for _, standing in standings)
    if state == COMPLETED:
        where = walk.handles[-1].run.path
        return prefect_state(state, f"all {len(walk.handles)} stages are finished; results in {where}")
    stopped = [one for one in standings if one[1].stand in ("failed", "cancelled")]
    message = "; ".join(f"{handle.label}: {standing.message}" for handle, standing in stopped)
    return prefect_state(state, message or "unfinished")
