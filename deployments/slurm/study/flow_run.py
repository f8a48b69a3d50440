"""A study on SLURM as the flow run that a person starts in Prefect: each stage is a task that shows how it stands."""

from __future__ import annotations

import math
import threading
import time
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import State

from deployments.dag.walk import Handle
from deployments.prefect.artifacts import StudyArtifacts
from deployments.prefect.flow_run import best_effort, outlive_worker, prefect_state
from deployments.slurm.cluster.client import SlurmCommands
from deployments.slurm.study import efficiency
from deployments.slurm.study.cancel import stop
from deployments.slurm.study.follow import End, followed
from deployments.slurm.study.mirror import Mirror
from deployments.slurm.study.standings import Standing
from deployments.slurm.study.study import SlurmStudy
from deployments.views.estimate import estimate
from storage.errors import BadInput
from storage.run_directory import RunDirectory
from tasks.stage.outcome import BAD_INPUT

ENDED = ("finished", "failed", "cancelled")
"""How a stage stands that does not go on by itself."""
LAST_SECONDS = 30.0
"""For what is still to be shown when the study has ended."""
SHOW_SECONDS = 1.0
ESTIMATE_EVERY_SECONDS = 30.0
"""It reads a file of every stage, on a disk that others use too."""


def follow_in_flow(slurm: SlurmStudy, of_command: bool) -> State[Any]:
    """Follows the study in the present flow run, each stage as a task of it.

    The flow run may die at any time: the jobs go on, and started again it attaches to them. `of_command`: it shows what
    a command has started, and starts nothing again.
    """
    with get_client(sync_client=True) as client:
        shown = StudyArtifacts(client, slurm.study.name, str(flow_run.id))
        best_effort(shown.clear)
        board = _Board(slurm, shown)
        try:
            outlive_worker(lambda: stop(slurm))
            return prefect_state(*_shown_to_the_end(slurm, board, of_command))
        except BadInput as error:
            return prefect_state(BAD_INPUT, str(error))
        finally:
            board.close()
            slurm.walk.check_markers()
            if used := efficiency.table(slurm.handles, SlurmCommands().used):
                best_effort(lambda: shown.text("efficiency", used, "What the jobs cost, and what of it was used"))
            if slurm.handles[-1].finished:
                best_effort(lambda: shown.results(slurm.handles[-1].run))


def _shown_to_the_end(slurm: SlurmStudy, board: _Board, of_command: bool) -> End:
    """How the study ended, which a thread follows: a server that is away or slow delays no job."""
    end: Future[End] = Future()
    changes: SimpleQueue[tuple[Handle, Standing]] = SimpleQueue()

    def follow() -> None:
        try:
            end.set_result(followed(slurm, lambda *change: changes.put(change), goes_on=True, is_entrusted=of_command))
        except BaseException as error:
            end.set_exception(error)

    threading.Thread(target=follow, daemon=True, name="follow").start()
    while not (end.done() and changes.empty()):
        with suppress(Empty):
            board.show(*changes.get(timeout=SHOW_SECONDS))
        board.looked()
    return end.result()


class _Board:
    """How each stage stands, for the tasks that show it: one for each stage, from when it is first under way."""

    def __init__(self, slurm: SlurmStudy, study: StudyArtifacts) -> None:
        self._slurm, self._study, self._estimated_at = slurm, study, -math.inf
        self._runs = [handle.run for handle in slurm.walk.handles]
        self._mirror = Mirror(str(flow_run.id))
        self._standings: dict[str, Standing] = {}
        self._changed = threading.Condition()
        self._closed = False
        self._tasks: dict[str, PrefectFuture[Any]] = {}
        self._log = get_run_logger()

    def show(self, handle: Handle, standing: Standing) -> None:
        best_effort(lambda: self._show(handle, standing))

    def looked(self) -> None:
        """Shows what the jobs wrote since, and now and then how far the whole study is."""
        best_effort(self._show_work)

    def _show(self, handle: Handle, standing: Standing) -> None:
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
        if standing.stand in ENDED:
            self._mirror.show_end(handle.run, self._tasks[print_].task_run_id, standing.stand == "finished")

    def _show_work(self) -> None:
        tasks = self._tasks
        under_way = [run for run in self._runs if self._stands(run) == "under way" and run.fingerprint in tasks]
        self._mirror.show([(run, tasks[run.fingerprint].task_run_id) for run in under_way])
        if time.monotonic() - self._estimated_at > ESTIMATE_EVERY_SECONDS:
            self._estimated_at = time.monotonic()
            self._estimate()

    def _estimate(self) -> None:
        self._slurm.walk.check_markers()
        self._study.progress(estimate(self._slurm.walk.handles, side_by_side=True))

    def _stands(self, run: RunDirectory) -> str:
        standing = self._standings.get(run.fingerprint)
        return standing.stand if standing else ""

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for shown in self._tasks.values():
            shown.wait()
        best_effort(self._estimate)
        self._mirror.close(LAST_SECONDS)

    def _task_of(self, handle: Handle) -> Any:
        name, print_ = handle.stage.name, handle.run.fingerprint

        @task(name=name, task_run_name=f"{handle.label} {print_[:12]}", cache_policy=NO_CACHE, persist_result=False)
        def stage() -> State[Any]:
            """Shows how the stage stands; the work is done in its SLURM jobs."""
            logger, shown = get_run_logger(), None
            while True:
                with self._changed:
                    now = self._standings[print_]
                    if now == shown and not self._closed:
                        self._changed.wait(60)
                        continue
                    closed = self._closed
                if now != shown:
                    logger.info("%s", now.line)
                    shown = now
                if closed or now.stand in ENDED:
                    return prefect_state(now.state, now.message)

        return stage
