"""A study whose stages are SLURM jobs: looked at once, or followed to its end by a flow run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL
from prefect.states import Cancelled, State, StateType

from deployments.page import Page
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.cluster.site import Site, read_site
from deployments.slurm.pool.runs import runs_tagged
from deployments.slurm.study import efficiency
from deployments.slurm.study import file as study_file
from deployments.slurm.study import look as slurm_study
from deployments.slurm.study.advance import Advance, Standing
from deployments.states import prefect_state
from deployments.walk import Handle, Walk
from storage.errors import BadInput
from tasks.stage.outcome import BAD_INPUT
from tasks.stage.validation import validated

LOG = logging.getLogger("ratchet.slurm")
HOOK_SECONDS = 120.0
"""For so long a cancelled flow run's own process is given to end its study."""
ENDED = ("finished", "failed", "cancelled")
"""How a stage stands that does not go on by itself."""


def looks(page: Page, study: Any, root: str) -> Callable[[bool], Advance]:
    """What looks at the study again and again, with the site as it was at first: an edit of its file ends nothing.

    Each look starts what is ready and says how each stage stands; a person's begins again what failed or was
    cancelled. The study is kept below the root, where `advance` and the jobs read it; before that, a person is told
    what stands against it, and nothing of what is under way has changed.
    """
    site, where, study = _at_site(study, root)

    def look(person: bool) -> Advance:
        file = study_file.path(where, page, study)
        if person:
            slurm_study.require_runnable(page, study, file, site, where)
            study_file.keep(where, page, study)
        elif not file.exists():
            raise BadInput(study_file.CHANGED)
        return look_at(file, site, where, person)

    return look


def look_at(file: Path, site: Site, root: Path, person: bool = False) -> Advance:
    """One look at a study that is kept already. BadInput when it is not the one that a person started."""
    page, study = study_file.read_unchanged(root, file)
    walk = slurm_study.look(page, study, file, site, root, person)
    if all(handle.finished for handle in walk.handles):
        study_file.stopped(file).touch()
    return walk


def _at_site(study: Any, root: str) -> tuple[Site, Path, Any]:
    """The site, the root, and the study with what it leaves to the site: where text and downloads are kept."""
    site = read_site()
    if site.cache and not study.execution.cache_folder:
        execution = study.execution.model_copy(update={"cache_folder": site.cache})
        study = study.model_copy(update={"execution": execution})
    return site, slurm_study.root_of(site, root), study


def follow_in_flow(page: Page, study: Any, root: str) -> State[Any]:
    """Follows the study in the present flow run, each stage as a task of it.

    The flow run may die at any time: the stages go on, and started again it attaches to them.
    """
    with get_client(sync_client=True) as client:
        which = "sweep" if page.over else f"seed-{study.seed}"
        client.update_flow_run(flow_run.id, tags=["ratchet", study.name, which])
    board = _Board()
    last: list[Advance] = []
    try:
        look = looks(page, study, root)

        def look_again(person: bool) -> Advance:
            last[:] = [look(person)]
            return last[0]

        return slurm_study.follow(look_again, board.tell)
    except BadInput as error:
        return prefect_state(BAD_INPUT, str(error))
    finally:
        board.close()
        if last and (used := efficiency.table(last[0].handles, SlurmCommands().used)):
            key = f"{study.name}-efficiency".lower().replace("_", "-").replace(".", "-")
            create_markdown_artifact(used, key=key, description="What the jobs cost, and what of it was used")


def standings(page: Page, study: Any, root: str) -> Advance:
    """How each stage stands; starts and writes nothing."""
    site, where, study = _at_site(study, root)
    return slurm_study.standings(page, study, site, where)


def scripts(page: Page, study: Any, root: str) -> Iterator[tuple[Handle, str]]:
    """The exact script of each unfinished stage's next job, then BadInput if one could not run; starts nothing."""
    site, where, study = _at_site(study, root)
    return slurm_study.scripts(page, study, study_file.path(where, page, study), site, where)


def stop(page: Page, study: Any, root: str) -> None:
    """Ends a study that a person cancelled: its stages under way are cancelled, and `advance` starts none."""
    _, where, study = _at_site(study, root)
    if files := study_file.files_of(where, page, study):
        for file in files:
            study_file.stopped(file).touch()
        names = {str(file) for file in files}
        slurm_study.cancel(page, study, names, where, _wanted(where))


def finish_cancels(root: Path) -> None:
    """Ends the studies below `root` whose flow runs a person cancelled when their processes were gone already.

    Prefect leaves such a run Cancelling for ever: the hook runs where the process was started, and nowhere else.
    """
    with get_client(sync_client=True) as client:
        for run in runs_tagged(client, "ratchet", [StateType.CANCELLING]):
            given, state = run.parameters, run.state
            ours = given.get("dispatch") == "slurm" and _root(given) == root and "study" in given
            if not ours or state is None or (datetime.now(UTC) - state.timestamp).total_seconds() < HOOK_SECONDS:
                continue
            try:
                for page in _pages_of(client.read_flow(run.flow_id).name, root):
                    study = validated(page.model, given["study"], f"flow run {run.name}")
                    stop(replace(page, over=given.get("over") or {}), study, str(root))
            except BadInput as error:  # of a study as it was once, say; the others are ended all the same
                LOG.warning("%s was cancelled, but not its stages: cancel them by hand. %s", run.name, error)
            client.set_flow_run_state(run.id, Cancelled(message="cancelled; its process was gone"), force=True)


def _pages_of(flow: str, root: Path) -> list[Page]:
    """The page whose flow has this name, if a study of it was started below `root`."""
    pages = {page.place: page for _, page, _ in study_file.kept(root)}
    return [page for page in pages.values() if page.name == flow]


def _root(parameters: dict[str, Any]) -> Path:
    return slurm_study.root_of(read_site(), parameters.get("root", ""))


def _wanted(root: Path) -> set[str]:
    """Fingerprints of all stages of the studies that were started and not stopped."""
    found = set()
    for file, page, study in study_file.kept(root):
        walk = Walk(root, study.name, study.execution)
        if not study_file.stopped(file).exists():
            with suppress(BadInput):  # its text is gone, say: it starts nothing
                found |= {handle.run.fingerprint for handle in page.walk(study, walk)}
    return found


def stop_cancelled(page: Page) -> Any:
    """The hook of a study's flow for `on_cancellation`."""

    def hook(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:  # Prefect gives them by name
        if flow_run.parameters.get("dispatch") == "slurm":
            given = flow_run.parameters
            swept = replace(page, over=given.get("over") or {})
            stop(swept, page.model.model_validate(given["study"]), given.get("root", ""))

    return hook


class _Board:
    """How each stage stands, for the tasks that show it: one for each stage, from when it is first under way."""

    def __init__(self) -> None:
        self._standings: dict[str, Standing] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._tasks: dict[str, PrefectFuture[Any]] = {}
        self._log = get_run_logger()

    def tell(self, handle: Handle, standing: Standing) -> None:
        print_ = handle.run.fingerprint
        with self._changed:
            self._standings[print_] = standing
            self._changed.notify_all()
        self._log.info("%s %s: %s", handle.label, print_[:12], standing.line)
        if standing.stand != "waits" and print_ not in self._tasks:
            self._tasks[print_] = self._task_of(handle).submit()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for shown in self._tasks.values():
            shown.wait()

    def _task_of(self, handle: Handle) -> Any:
        name, print_ = handle.stage.name, handle.run.fingerprint

        @task(name=name, task_run_name=f"{handle.label} {print_[:12]}", cache_policy=NO_CACHE, persist_result=False)
        def stage() -> State[Any]:
            """Shows how the stage's own flow run stands; the work is done in its SLURM jobs."""
            logger, shown = get_run_logger(), None
            while True:
                with self._changed:
                    now = self._standings[print_]
                    if now == shown and not self._closed:
                        self._changed.wait(60)
                        continue
                    closed = self._closed
                if now != shown:
                    page = f" {PREFECT_UI_URL.value()}/runs/flow-run/{now.flow_run}" if now.flow_run else ""
                    logger.info("%s%s", now.line, page)
                    shown = now
                if closed or now.stand in ENDED:
                    return prefect_state(now.state, now.message)

        return stage
