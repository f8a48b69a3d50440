"""A study on SLURM as the flow run that a person starts in Prefect: each stage is a task that shows how it stands."""

import math
import threading
import time
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import PREFECT_UI_URL
from prefect.states import State

from deployments.dag.walk import Handle
from deployments.prefect.artifacts import StudyArtifacts
from deployments.prefect.flow_run import best_effort, outlive_worker, prefect_state
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.study import efficiency
from deployments.slurm.study.cancel import stop
from deployments.slurm.study.flow_runs import Prefect
from deployments.slurm.study.follow import Follower, follow
from deployments.slurm.study.standings import Standing, Standings
from deployments.slurm.study.study import SlurmStudy
from deployments.views.estimate import estimate
from storage.errors import BadInput
from tasks.stage.outcome import BAD_INPUT

ENDED = ("finished", "failed", "cancelled")
"""How a stage stands that does not go on by itself."""
ESTIMATE_EVERY_SECONDS = 30.0
"""It reads a file of every stage, on a disk that others use too."""


def follow_in_flow(slurm: SlurmStudy) -> State[Any]:
    """Follows the study in the present flow run, each stage as a task of it.

    The flow run may die at any time: the stages go on, and started again it attaches to them.
    """
    with get_client(sync_client=True) as client:
        shown = StudyArtifacts(client, slurm.study.name, str(flow_run.id))
        best_effort(shown.clear)
        board = _Board(shown)
        try:
            outlive_worker(lambda: stop(slurm))
            return prefect_state(*follow(Follower(Prefect(), slurm), board.show, polled=board.estimate))
        except BadInput as error:
            return prefect_state(BAD_INPUT, str(error))
        finally:
            board.close()
            if used := efficiency.table(slurm.handles, SlurmCommands().used):
                shown.text("efficiency", used, "What the jobs cost, and what of it was used")
            if slurm.handles[-1].finished:
                best_effort(lambda: shown.results(slurm.handles[-1].run))


class _Board:
    """How each stage stands, for the tasks that show it: one for each stage, from when it is first under way."""

    def __init__(self, study: StudyArtifacts) -> None:
        self._study, self._estimated_at = study, -math.inf
        self._standings: dict[str, Standing] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._tasks: dict[str, PrefectFuture[Any]] = {}
        self._log = get_run_logger()

    def show(self, handle: Handle, standing: Standing) -> None:
        print_ = handle.run.fingerprint
        with self._changed:
            self._standings[print_] = standing
            self._changed.notify_all()
        self._log.info("%s %s: %s", handle.label, print_[:12], standing.line)
        if standing.stand != "waits" and print_ not in self._tasks:
            parents = [before.run.fingerprint for before in handle.inputs.values()]
            self._tasks[print_] = self._task_of(handle).submit(
                wait_for=[self._tasks[parent] for parent in parents if parent in self._tasks]
            )

    def estimate(self, standings: Standings) -> None:
        """Shows now and then how far the whole study is."""
        if time.monotonic() - self._estimated_at > ESTIMATE_EVERY_SECONDS or not standings.under_way:
            self._estimated_at = time.monotonic()
            best_effort(lambda: self._study.progress(estimate(standings.handles, side_by_side=True)))

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
                    link = f" {PREFECT_UI_URL.value()}/runs/flow-run/{now.flow_run}" if now.flow_run else ""
                    logger.info("%s%s", now.line, link)
                    shown = now
                if closed or now.stand in ENDED:
                    return prefect_state(now.state, now.message)

        return stage
