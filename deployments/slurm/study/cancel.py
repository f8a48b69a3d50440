"""The flow run that shows a study in Prefect, and a person's Cancel of a study: it ends the stages under way, but for
those that another study wants too.

The flow run of a study that a command started is one as a person starts in the UI, so a worker of the pool `ratchet`
runs it; it finds the stages under way.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.settings import PREFECT_UI_URL
from prefect.states import Cancelled, Cancelling, State, StateType

from deployments.dag.page import Page
from deployments.deploy import deploy, make_pool
from deployments.prefect.flow_run import best_effort, end_killed, flow_runs, of_type
from deployments.prefect.generate import STUDIES, Profile, study_deployment
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.job.journal import Journal, jobs_folder
from deployments.slurm.pool.runs import NOT_ENDED, passes, patiently
from deployments.slurm.study import study as study_file
from deployments.slurm.study.stop import mark_stopped, wanted_by_others
from deployments.slurm.study.study import SlurmStudy, root_of
from storage.errors import BadInput
from tasks.stage.validation import validated

LOG = logging.getLogger("ratchet.slurm")
HOOK_SECONDS = 120.0
"""Time that a cancelled flow run's own process is given to end its study."""


def address_of(slurm: SlurmStudy) -> str:
    """Address of the study's flow run: the one under way, else a new one."""
    best_effort(lambda: end_killed(study_file.tag(slurm.file)))
    with get_client(sync_client=True) as client:
        tagged = flow_runs(client, tags={"all_": [study_file.tag(slurm.file)]}, state=NOT_ENDED)
        run = next((run for run in tagged if is_of(run, slurm)), None)
        run = run or _made(client, slurm)
    return f"{PREFECT_UI_URL.value()}/runs/flow-run/{run.id}"


def is_of(run: FlowRun, slurm: SlurmStudy) -> bool:
    """True where a flow run with the study's tag is of its root: a server may have the same study below another one."""
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
    named = FlowFilter.model_validate({"name": {"any_": [page.name]}})
    usable = [
        known
        for known in client.read_deployments(flow_filter=named)
        if (known.entrypoint, known.job_variables) == (made["entrypoint"], made["work_pool"]["job_variables"])
    ]
    if not usable:
        make_pool(client, STUDIES)
        (name,) = deploy(client, [made])
        return client.read_deployment_by_name(name)
    ours = slurm.study.name
    return min(usable, key=lambda known: (known.parameters.get("study", {}).get("name") != ours, known.name))


def stop(slurm: SlurmStudy) -> None:
    """Ends a study that a person cancelled: its flow runs under way are cancelled, and `advance` starts none."""
    if files := mark_stopped(slurm):
        cancel_runs(slurm, files)


def cancel_runs(slurm: SlurmStudy, files: Iterable[Path]) -> int:
    """Cancels the flow runs of the study and of its stages, and says how many; the worker ends their jobs."""
    return _cancel(slurm, {str(file) for file in files}, spared=wanted_by_others(slurm))


def withdraw(slurm: SlurmStudy, why: str) -> None:
    """Cancels the flow runs of the study's stages that have no job: what was started goes on, and no more of it is."""
    runs = {handle.run.fingerprint: Journal(jobs_folder(handle.run)).all() for handle in slurm.handles}
    at_work = {fingerprint for fingerprint, entries in runs.items() if any(entry.live for entry in entries)}
    _cancel(slurm, set(), wanted_by_others(slurm) | at_work, why)


def stop_cancelled(page: Page) -> Any:
    """The hook of a study's flow for `on_cancellation`."""

    def hook(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:  # Prefect gives them by name
        if flow_run.parameters.get("dispatch") == "slurm":
            parameters = flow_run.parameters
            swept = replace(page, over=parameters.get("over") or {})
            stop(SlurmStudy.at_site(swept, page.model.model_validate(parameters["study"]), parameters.get("root", "")))

    return hook


def finish_cancels(root: Path) -> None:
    """Ends the studies below `root` whose flow runs a person cancelled when their processes were gone already.

    Prefect leaves such a run Cancelling for ever: the hook runs where the process was started, and nowhere else.
    """
    site = read_site()
    with get_client(sync_client=True) as client:
        for run in flow_runs(client, tags={"all_": ["ratchet"]}, state=of_type(StateType.CANCELLING)):
            parameters, state = run.parameters, run.state
            ours = parameters.get("dispatch") == "slurm" and root_of(site, parameters.get("root", "")) == root
            if not ours or "study" not in parameters or state is None:
                continue
            if (datetime.now(UTC) - state.timestamp).total_seconds() < HOOK_SECONDS:
                continue
            try:
                for page in _pages_of(client.read_flow(run.flow_id).name, root, site):
                    study = validated(page.model, parameters["study"], f"flow run {run.name}")
                    stop(SlurmStudy.at_site(replace(page, over=parameters.get("over") or {}), study, str(root)))
            except BadInput as error:  # an outdated study's, say; the others are ended all the same
                LOG.warning("%s was cancelled, but not its stages: cancel them by hand. %s", run.name, error)
            except httpx.HTTPError as error:
                LOG.warning("%s was cancelled, but not yet all its stages: it is tried again. %s", run.name, error)
                continue
            client.set_flow_run_state(run.id, Cancelled(message="cancelled; its process was gone"), force=True)
        for file, page, study in study_file.readable(root, site):
            if not study_file.stopped(file).exists() and _cancelled_unheard(client, file, site, root):
                stop(SlurmStudy(page, study, site, root))


def _cancelled_unheard(client: SyncPrefectClient, file: Path, site: Site, root: Path) -> bool:
    """True if a flow run of the study was cancelled since the study was started, and no process ended the study: none
    had the run yet, or it was gone with its worker, and Prefect called the run Cancelled after five minutes."""
    return any(
        root_of(site, run.parameters.get("root", "")) == root
        and run.state is not None
        and run.state.timestamp.timestamp() > file.stat().st_mtime
        for run in flow_runs(client, tags={"all_": [study_file.tag(file)]}, state=of_type(StateType.CANCELLED))
    )


def _pages_of(flow: str, root: Path, site: Site) -> list[Page]:
    """The page whose flow has this name, if a study of it was started below `root`."""
    pages = {page.place: page for _, page, _ in study_file.readable(root, site)}
    return [page for page in pages.values() if page.name == flow]


def _cancel(slurm: SlurmStudy, study_files: set[str], spared: set[str], why: str = "its study was cancelled") -> int:
    """Asks Prefect to cancel the study's flow runs under way, and says how many; the worker ends their jobs.

    Those are the study's own, the stages of its page as it is now, and what was started of one of its files, when a
    stage or a package has changed since. Stages whose fingerprint is in `spared` go on: another study wants them too.
    Raises httpx.HTTPError when the server stays busy or away: some of them may go on.
    """
    wanted = {handle.run.fingerprint for handle in slurm.handles if not handle.finished}
    tags, cancelled = {study_file.tag(Path(file)) for file in study_files}, 0
    with get_client(sync_client=True) as client:
        for run in patiently(partial(flow_runs, client, tags={"all_": [slurm.study.name]}, state=NOT_ENDED)):
            parameters, print_ = run.parameters, run.parameters.get("fingerprint")
            of_stage = parameters.get("root") == str(slurm.root) and (
                print_ in wanted or parameters.get("study_file") in study_files
            )
            if (of_stage and print_ not in spared) or (tags & {*run.tags} and is_of(run, slurm)):
                wish: State[Any] = Cancelling(message=why)
                try:
                    patiently(partial(client.set_flow_run_state, run.id, wish))
                    cancelled += 1
                except httpx.HTTPError as error:
                    if passes(error):
                        raise
                    LOG.warning("%s could not be cancelled: %s", run.name, error)
    return cancelled
