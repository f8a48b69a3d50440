"""What is checked before a study's first job: whether the cluster could run each of its stages."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, get_args

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import WorkPoolStatus

from deployments.page import load_page, page_names, stages_of
from deployments.slurm.cluster.partitions import read_cluster
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.plan import preview, time_problem
from deployments.slurm.job.preflight import notes, require
from deployments.slurm.job.variables import Deployments, own_resources, plan_for
from deployments.slurm.study.study import SlurmStudy
from deployments.walk import Handle, Walk
from storage.errors import BadInput
from tasks.stage.run import Needs

LOG = logging.getLogger("ratchet.slurm")
MANY_STAGES = 100
"""From so many on, a start takes minutes on SQLite (tests/benchmarks/README.md)."""


def require_runnable(slurm: SlurmStudy) -> None:
    """BadInput when the job of any unfinished stage could not run on this cluster; writes nothing."""
    own = own_resources(slurm.study)
    _require_known_stages(slurm.walk, own, slurm.site)
    cluster, source = read_cluster(), slurm.present_source
    noted = set()
    left = [handle for handle in slurm.handles if not handle.finished]
    if len(left) >= MANY_STAGES:
        LOG.warning(
            "%d stages: a server whose database is SQLite, the default, takes some minutes to start so many; on "
            "PostgreSQL it takes a third of that (docs/cluster.md, PostgreSQL)",
            len(left),
        )
    with get_client(sync_client=True) as client:
        deployments = Deployments(client)
        for handle in left:
            plan = plan_for(deployments, slurm.site, handle, slurm.file, source, own)
            asked = plan.resources
            if problem := time_problem(replace(plan, automatic=False)):
                raise BadInput(f"{handle.label}: {problem}")
            require(asked, cluster, handle.run.path, handle.stage.name, strict_lead=slurm.site.strict_lead)
            noted |= set(notes(asked, cluster))
        for note in sorted(noted):
            LOG.warning("%s", note)
        warn_of_idle_pools(client)


def scripts(slurm: SlurmStudy) -> Iterator[tuple[Handle, str]]:
    """The exact script of each unfinished stage's next job; then BadInput when one of them could not run here."""
    source, own = slurm.present_source, own_resources(slurm.study)
    with get_client(sync_client=True) as client:
        deployments = Deployments(client)
        for one in slurm.handles:
            if not one.finished:
                yield one, preview(plan_for(deployments, slurm.site, one, slurm.file, source, own))
    require_runnable(slurm)


def warn_of_idle_pools(client: SyncPrefectClient) -> None:
    """Without a worker nothing is submitted, and what runs is shown as it was when the last one died."""
    stages = client.read_deployments(flow_filter=FlowFilter(name=FlowFilterName(any_=["stage"])))
    for pool in sorted({one.work_pool_name for one in stages if one.work_pool_name}):
        status = client.read_work_pool(pool).status
        if status == WorkPoolStatus.NOT_READY:
            LOG.warning("no worker serves the pool %s: start one with `prefect worker start --pool %s`", pool, pool)
        elif status == WorkPoolStatus.PAUSED:
            LOG.warning("the pool %s is paused: nothing is submitted until `prefect work-pool resume %s`", pool, pool)


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
