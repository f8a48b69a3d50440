"""The flow run of a study that a command started: it shows the study in Prefect, and its Cancel ends it.

It is one as a person starts in the UI, so a worker of the pool `ratchet` runs it; it finds the stages under way.
"""

from __future__ import annotations

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.settings import PREFECT_UI_URL

from deployments.deploy import STUDIES, deploy, make_pool
from deployments.prefect.artifacts import best_effort
from deployments.prefect.generate import Profile, study_deployment
from deployments.prefect.liveness import end_killed
from deployments.slurm.pool.runs import NOT_ENDED, runs_tagged
from deployments.slurm.study import file as study_file
from deployments.slurm.study.study import SlurmStudy, root_of


def address_of(slurm: SlurmStudy) -> str:
    """Where the study's flow run is seen: the one under way, else a new one."""
    best_effort(lambda: end_killed(study_file.tag(slurm.file)))
    with get_client(sync_client=True) as client:
        run = next(
            (run for run in runs_tagged(client, study_file.tag(slurm.file), NOT_ENDED) if is_of(run, slurm)), None
        )
        run = run or _made(client, slurm)
    return f"{PREFECT_UI_URL.value()}/runs/flow-run/{run.id}"


def is_of(run: FlowRun, slurm: SlurmStudy) -> bool:
    """Whether a flow run with the study's tag is of its root: a server may have the same study below another one."""
    return "study" in run.parameters and root_of(slurm.site, run.parameters.get("root", "")) == slurm.root


def _made(client: SyncPrefectClient, slurm: SlurmStudy) -> FlowRun:
    page, study = slurm.page, slurm.study
    return client.create_flow_run_from_deployment(
        _deployment(client, slurm).id,
        name=f"{study.name}-" + ("sweep" if page.over else f"s{study.seed}"),
        parameters={
            "study": study.model_dump(mode="json"),
            "root": str(slurm.root),
            "dispatch": "slurm",
            "over": page.over,
        },
        tags=[study.name, study_file.tag(slurm.file)],
    )


def _deployment(client: SyncPrefectClient, slurm: SlurmStudy) -> DeploymentResponse:
    """One of the page: that of the study's profile, else any, since all that a run is given replaces what it holds."""
    page = slurm.page
    made = study_deployment(Profile(page, page.name, page.description, {"name": page.name}), "slurm")
    named = FlowFilter(name=FlowFilterName(any_=[page.name]))
    usable = [
        one
        for one in client.read_deployments(flow_filter=named)
        if (one.entrypoint, one.job_variables) == (made["entrypoint"], made["work_pool"]["job_variables"])
    ]
    if not usable:
        make_pool(client, STUDIES)
        (name,) = deploy(client, [made])
        return client.read_deployment_by_name(name)
    return min(usable, key=lambda one: (one.parameters.get("study", {}).get("name") != slurm.study.name, one.name))
