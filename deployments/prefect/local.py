"""A study that runs here as the present Prefect flow run: each stage a task, whose work another process does.

Prefect shows what happens and is asked nothing: what is finished is decided by the markers on disk.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException, TerminationSignal
from prefect.logging.configuration import setup_logging
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run, task_run
from prefect.states import Completed, State, StateType

from deployments.dag.page import Page
from deployments.dag.walk import Handle, Walk
from deployments.here.process import WorkProcess
from deployments.here.study import RETRY_DELAY_SECONDS, message, run_study
from deployments.prefect.artifacts import StageArtifacts, StudyArtifacts
from deployments.prefect.embedded import prefect_server
from deployments.prefect.flow_run import beside, best_effort, end_killed, outlive_worker, prefect_state
from deployments.views.estimate import estimate
from deployments.waits import Terminated
from tasks.stage.outcome import FAILED, Outcome, PrefectState, state_named
from tasks.stage.progress import FOR_THE_TERMINAL

LOG = logging.getLogger("ratchet.local")
REPORT_EVERY_SECONDS = 10.0
LAST_REPORT_SECONDS = 5.0


def run_as_flow(page: Page, study: Any, walk: Walk) -> tuple[PrefectState, str]:
    """Runs a walked page as a flow run on the server that stands, or on one for as long; its state, and why."""
    from deployments.flow import flow_of  # which takes `run_here`

    # log lines go to the attempt's log and to Prefect: in the terminal they would break the bars, and say it twice
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    setup_logging(incremental=False)
    try:
        with prefect_server() as address:
            LOG.setLevel(logging.INFO)
            LOG.info("Prefect API: %s", address, extra=FOR_THE_TERMINAL)
            state: Any = flow_of(page)(study, str(walk.root), over=page.over, return_state=True)
    except TerminationSignal:
        raise Terminated from None
    return state_named(state.name), state.message


def run_here(page: Page, study: Any, walk: Walk) -> State[Any]:
    """Runs each stage of the walk whose inputs are finished, in the present flow run; returns the study's state."""
    killed = beside(lambda: end_killed(walk.study))
    with get_client(sync_client=True) as client:
        shown = StudyArtifacts(client, walk.study, str(flow_run.id))
        best_effort(shown.clear)
        process = WorkProcess(page, study, walk)
        tasks = _Tasks(process, lambda: shown.progress(estimate(walk.handles)))
        outlive_worker(tasks.cancel)
        try:
            state, words = run_study(walk, tasks, lambda: page.sweep_without_stopped(study, walk))
        finally:
            process.close()
        best_effort(lambda: shown.progress(estimate(walk.handles)))
        if walk.handles[-1].finished:
            best_effort(lambda: shown.results(walk.handles[-1].run))
    killed.join(LAST_REPORT_SECONDS)
    return prefect_state(state, words)


class _Tasks:
    """The stages as tasks of the present flow run; those that a stage reads are its parents in the graph.

    The tasks have no tags: for each task with tags Prefect asks the server for concurrency slots, which takes about
    2 s; the flow run carries them.
    """

    def __init__(self, process: WorkProcess, show_study: Callable[[], None]) -> None:
        """`show_study` shows now and then how far the whole study is."""
        self._process, self._show_study = process, show_study
        self._ended: dict[str, State[Any]] = {}
        self._cancelled = False

    def cancel(self) -> None:
        """For a person, when no worker is there any more to do it: the stage at work saves, and no other begins."""
        self._cancelled = True
        self._process.stop()

    def is_cancelled(self) -> bool:
        """True also where Prefect's worker made a SIGTERM of it. No if nobody says."""
        try:
            with get_client(sync_client=True) as client:
                state = client.read_flow_run(flow_run.id).state
        except (httpx.HTTPError, PrefectException) as error:
            LOG.debug("not asked whether the run was cancelled: %s", error)
            return self._cancelled
        return self._cancelled or (state is not None and state.type == StateType.CANCELLING)

    def work(self, handle: Handle) -> None:
        self._run(handle, lambda: self._attempt(handle))

    def show_finished(self, handle: Handle) -> None:
        self._run(handle, lambda: _show_results(handle))

    def _run(self, handle: Handle, work: Callable[[], State[Any]]) -> None:
        as_task = task(
            name=handle.stage.name,
            task_run_name=f"{handle.label} {handle.run.fingerprint[:12]}",
            description=(handle.stage.config.__doc__ or "").strip(),
            retries=len(RETRY_DELAY_SECONDS),
            retry_delay_seconds=RETRY_DELAY_SECONDS,
            retry_condition_fn=lambda *_: bool(handle.outcome and handle.outcome.retryable),
            cache_policy=NO_CACHE,
            persist_result=False,
        )(work)
        parents = [self._ended[parent.run.fingerprint] for parent in handle.inputs.values()]
        self._ended[handle.run.fingerprint] = as_task(return_state=True, wait_for=parents)

    def _attempt(self, handle: Handle) -> State[Any]:
        """One attempt; the outcome is left in the handle."""
        if self._cancelled:
            handle.outcome = Outcome("sigterm", "cancelled before it began")
        else:
            with _logs_to_prefect(), _shown_while_working(handle, self._show_study):
                handle.outcome = self._process.attempt(handle)
        state = handle.outcome.state
        if handle.outcome.retryable:
            state = replace(state, type=FAILED.type)  # Prefect retries no other
        return prefect_state(state, message(handle, handle.outcome))


def _show_results(handle: Handle) -> State[Any]:
    """A stage that was finished before this run, with its results."""
    with get_client(sync_client=True) as client:
        shown = StageArtifacts(client, handle.run, str(flow_run.id), task_run.id)
        best_effort(shown.results)
    return Completed(name="Cached", message=str(handle.run.path))


@contextlib.contextmanager
def _logs_to_prefect() -> Iterator[None]:
    logger, handler = logging.getLogger("ratchet"), APILogHandler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def _shown_while_working(handle: Handle, show_study: Callable[[], None]) -> Iterator[None]:
    """Shows progress, and in the end the result, from a thread: a slow or absent server delays no work."""
    ended = threading.Event()
    page = (str(flow_run.id), task_run.id)

    def report() -> None:
        with get_client(sync_client=True) as client:
            shown = StageArtifacts(client, handle.run, *page)
            while not ended.wait(REPORT_EVERY_SECONDS):
                best_effort(shown.progress)
                best_effort(shown.curves)
                best_effort(show_study)
            if shown.shows("progress"):
                best_effort(shown.progress)
            if handle.outcome and handle.outcome.end_state == "finished":
                best_effort(shown.results)

    thread = beside(report)
    try:
        yield
    finally:
        ended.set()
        thread.join(LAST_REPORT_SECONDS)
