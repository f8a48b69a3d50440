"""Checks before a study's first job: whether the cluster could run each of its stages."""

import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, get_args

from deployments.dag.page import load_page, stages_of
from deployments.dag.sources import page_names
from deployments.dag.walk import Handle, Walk
from deployments.slurm.cluster.client import other_clusters
from deployments.slurm.cluster.partitions import read_cluster
from deployments.slurm.cluster.site import Site
from deployments.slurm.job.plan import Plan, preview, time_problem
from deployments.slurm.job.preflight import folder_problems, notes, problems, refusal_text
from deployments.slurm.job.resources import next_plan, own_resources
from deployments.slurm.study.looks import FOLLOW
from deployments.slurm.study.study import SlurmStudy
from storage.errors import BadInput
from storage.permissions import open_to_all
from tasks.stage.numerics import without_cuda
from tasks.stage.run import Needs

LOG = logging.getLogger("ratchet.slurm")


def require_runnable(slurm: SlurmStudy) -> None:
    """BadInput with all that stands against the jobs of the unfinished stages on this cluster; writes nothing."""
    texts = checked(slurm)
    if texts.problems:
        raise BadInput(texts.refusal)


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
    for handle in (handle for handle in slurm.handles if not handle.finished):
        try:
            plan = next_plan(handle, slurm.site, slurm.file, source, own)
            against = problems(plan.resources, cluster, os.environ, strict_lead=slurm.site.strict_lead)
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
