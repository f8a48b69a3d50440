"""The flow run that shows a study on SLURM in Prefect, and a person's Cancel of it.

The flow run of a study that a command started is one as a person starts in the UI, so a worker of the pool `ratchet`
runs it; it finds the stages under way.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowFilter
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_UI_URL
from prefect.states import Cancelled, Cancelling, State, StateType

from deployments.dag.page import Page
from deployments.deploy import deploy, make_pool
from deployments.prefect.flow_run import best_effort, end_killed, flow_runs, of_type
from deployments.prefect.generate import STUDIES, Profile, study_deployment
from deployments.slurm.cluster.client import SlurmCommands, Unreachable
from deployments.slurm.cluster.site import read_site
from deployments.slurm.study import study as study_file
from deployments.slurm.study.stop import cancel_jobs, mark_stopped
from deployments.slurm.study.study import SlurmStudy, root_of
from storage.errors import BadInput

LOG = logging.getLogger("ratchet.slurm")
HOOK_SECONDS = 120.0
"""Time that a cancelled flow run's own process is given to end its study."""
NOT_ENDED = of_type(StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED)


def address_of(slurm: SlurmStudy) -> str:
    """Address of the study's flow run: the one under way, else a new one."""
    best_effort(lambda: end_killed(study_file.tag(slurm.file)))
    with get_client(sync_client=True) as client:
        run = next(_runs_of(client, slurm, [slurm.file]), None) or _made(client, slurm)
    return f"{PREFECT_UI_URL.value()}/runs/flow-run/{run.id}"


def _runs_of(
    client: SyncPrefectClient, slurm: SlurmStudy, files: Iterable[Path], state: dict[str, Any] = NOT_ENDED
) -> Iterator[FlowRun]:
    """The study's own flow runs in such a state, by the tags of its files: a server may have the same study below
    another root."""
    for file in files:
        for run in flow_runs(client, tags={"all_": [study_file.tag(file)]}, state=state):
            if "study" in run.parameters and root_of(slurm.site, run.parameters.get("root", "")) == slurm.root:
                yield run


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
    """Ends a study that a person cancelled: its jobs end, and nothing of it is started."""
    if files := mark_stopped(slurm):
        with suppress(Unreachable):  # then whoever serves the root ends the jobs
            cancel_jobs(slurm, SlurmCommands(), files)
        cancel_flow_runs(slurm, files)


def cancel_flow_runs(slurm: SlurmStudy, files: Iterable[Path]) -> int:
    """Cancels the study's own flow runs, and says how many. Raises httpx.HTTPError."""
    with get_client(sync_client=True) as client:
        runs = [*_runs_of(client, slurm, files)]
        for run in runs:
            wish: State[Any] = Cancelling(message="its study was cancelled")
            client.set_flow_run_state(run.id, wish)
    return len(runs)


def stop_cancelled(page: Page) -> Any:
    """The hook of a study's flow for `on_cancellation`."""

    def hook(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:  # Prefect gives them by name
        if flow_run.parameters.get("dispatch") == "slurm":
            parameters = flow_run.parameters
            swept = replace(page, over=parameters.get("over") or {})
            stop(SlurmStudy.at_site(swept, page.model.model_validate(parameters["study"]), parameters.get("root", "")))

    return hook


def finish_cancels(root: Path) -> None:
    """Ends the studies below `root` whose flow runs a person cancelled when no process of theirs was there to do it.

    Prefect leaves such a run Cancelling for ever, or calls it Cancelled after five minutes.
    """
    site = read_site()
    for file, page, study in study_file.readable(root, site):
        if not study_file.stopped(file).exists():
            try:
                _finish_cancel(SlurmStudy(page, study, site, root), file)
            except (BadInput, PrefectException, httpx.HTTPError, OSError) as error:  # the others are ended all the same
                LOG.warning("%s: not asked whether it was cancelled: %s", file.stem, error)


def _finish_cancel(slurm: SlurmStudy, file: Path) -> None:
    with get_client(sync_client=True) as client:
        asked = _runs_of(client, slurm, [file], of_type(StateType.CANCELLING, StateType.CANCELLED))
        late = [run for run in asked if run.state and _is_unheard(run.state, file)]
        if late:
            stop(slurm)
        for run in late:
            client.set_flow_run_state(run.id, Cancelled(message="cancelled; its process was gone"), force=True)


def _is_unheard(state: State[Any], study: Path) -> bool:
    """True where a cancel is newer than the study's start, and its process has had the time to do what it asks."""
    since = datetime.now(UTC) - state.timestamp
    is_newer = state.timestamp.timestamp() > study.stat().st_mtime
    return is_newer and (state.is_cancelled() or since.total_seconds() >= HOOK_SECONDS)
