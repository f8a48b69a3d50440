"""Checks before a study's first job: whether the cluster could run each of its stages."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.objects import WorkPoolStatus

from deployments.dag.page import load_page, stages_of
from deployments.dag.sources import page_names
from deployments.dag.walk import Handle, Walk
from deployments.slurm.cluster.client import other_clusters
from deployments.slurm.cluster.partitions import read_cluster
from deployments.slurm.cluster.site import Site, environment_of_worker, folder_of_pool
from deployments.slurm.job.plan import Plan, preview, time_problem
from deployments.slurm.job.preflight import folder_problems, notes, problems, refusal_text
from deployments.slurm.job.variables import Deployments, own_resources, plan_for
from deployments.slurm.study.follower import FOLLOW
from deployments.slurm.study.study import SlurmStudy
from storage import locks
from storage.errors import BadInput
from storage.permissions import open_to_all
from tasks.stage.numerics import without_cuda
from tasks.stage.run import Needs

LOG = logging.getLogger("ratchet.slurm")
MANY_STAGES = 100
"""Number from which a start takes minutes on SQLite (benchmarks/README.md)."""


def require_runnable(slurm: SlurmStudy) -> None:
    """BadInput with all that stands against the jobs of the unfinished stages on this cluster; writes nothing."""
    texts = checked(slurm)
    if texts.problems:
        raise BadInput(texts.refusal)
    if len(texts.plans) >= MANY_STAGES:
        LOG.warning(
            "%d stages: a server whose database is SQLite, the default, takes some minutes to start so many; on "
            "PostgreSQL it takes a third of that (docs/cluster.md, PostgreSQL)",
            len(texts.plans),
        )


@dataclass(frozen=True)
class Checked:
    """The next jobs of a study's unfinished stages, and what stands against them."""

    plans: list[tuple[Handle, Plan]]
    """Stages whose job can be put together, and their plans."""
    problems: dict[str, list[str]]
    """Each once, with the labels of the stages that it stops; none of them: it stops all."""

    @property
    def refusal(self) -> str:
        """All of it, so that a person corrects it in one go; empty when nothing stands against the jobs."""
        if not self.problems:
            return ""
        return refusal_text(
            "jobs", (f"{', '.join(stages)}: {text}" if stages else text for text, stages in self.problems.items())
        )

    def scripts(self) -> Iterator[tuple[Handle, str]]:
        """The exact text of each job."""
        for handle, plan in self.plans:
            yield handle, preview(plan)


def checked(slurm: SlurmStudy) -> Checked:
    """The study's jobs, one and all; writes nothing. What a person should know of jobs that can run is logged."""
    own, cluster, source = own_resources(slurm.study), read_cluster(), slurm.present_source
    plans: list[tuple[Handle, Plan]] = []
    texts: dict[str, list[str]] = {}
    noted: set[str] = set()
    of_root = folder_problems(slurm.root, several_hosts=cluster.several_hosts)
    for text in [*other_clusters(), *_unknown_stages(slurm.walk, own, slurm.site), *of_root, *_unowned(slurm)]:
        texts[text] = []
    with get_client(sync_client=True) as client:
        deployments = Deployments(client)
        for handle in (handle for handle in slurm.handles if not handle.finished):
            try:
                plan = plan_for(deployments, slurm.site, handle, slurm.file, source, own)
                variables = environment_of_worker(folder_of_pool(slurm.site, deployments.pool(handle.stage.deployment)))
                against = problems(plan.resources, cluster, variables, strict_lead=slurm.site.strict_lead)
                if too_short := time_problem(replace(plan, automatic=False)):
                    against.append(too_short)
                if not slurm.site.python and handle.config.numerics.torch and handle.config.execution.device == "cuda":
                    against += filter(None, [without_cuda()])  # in the jobs' Python, which is this one
                plans.append((handle, plan))
                noted |= {*notes(plan.resources, cluster)}
            except BadInput as error:
                against = [str(error)]
            of_run = [] if of_root else folder_problems(handle.run.path, several_hosts=cluster.several_hosts)
            for text in [*against, *of_run]:
                texts.setdefault(text, []).append(handle.label)
        if slurm.study.execution.permissions == "umask" and open_to_all(slurm.root / slurm.study.name):
            noted.add(
                f"everybody on this cluster can read what the study keeps below {slurm.root}, its texts and logs too: "
                "`permissions: private` (or group) in the site file closes it"
            )
        for note in sorted(noted):
            LOG.warning("%s", note)
    return Checked(plans, texts)


def warn_of_idle_pools(client: SyncPrefectClient, site: Site) -> None:
    """Without a worker nothing is submitted, and what runs is shown as it was when the last one died."""
    stages = client.read_deployments(flow_filter=FlowFilter.model_validate({"name": {"any_": ["stage"]}}))
    for pool in sorted({stage.work_pool_name for stage in stages if stage.work_pool_name}):
        status = client.read_work_pool(pool).status
        if status == WorkPoolStatus.NOT_READY or not locks.holder(folder_of_pool(site, pool) / "locks"):
            LOG.warning(
                "no worker serves the pool %s for the root %s: start one with `prefect worker start --pool %s`",
                *(pool, site.root, pool),
            )
        elif status == WorkPoolStatus.PAUSED:
            LOG.warning("the pool %s is paused: nothing is submitted until `prefect work-pool resume %s`", pool, pool)


def _unowned(slurm: SlurmStudy) -> list[str]:
    """Objections to files that others may write, for which `advance` would start nothing more."""
    try:
        slurm.require_own()
    except BadInput as error:
        return [str(error)]
    return []


def _unknown_stages(walk: Walk, own: dict[str, Any], site: Site) -> list[str]:
    """Resources of stages that do not exist: they would be given to nobody.

    A site serves several studies, so the stages of any may stand in it, and what several of them need.
    """
    known = {handle.stage.name for handle in walk.handles}
    others = {stage.name for name in page_names() for stage in stages_of(load_page(name))}
    return [
        f"{where}.{unknown}: no stage has this name; known: {', '.join(sorted(names))}"
        for where, named, names in (
            ("execution.resources", own, known | {"all"}),
            ("site file: stages", site.stages, known | others | {*get_args(Needs), FOLLOW}),
        )
        for unknown in sorted(set(named) - names)
    ]
