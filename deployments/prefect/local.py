"""Runs a study here: each stage to its end, in this process, as a Prefect task, in page order.

Prefect shows what happens and is asked nothing: what is finished is decided by the markers on disk.
"""

import contextlib
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.exceptions import PrefectException
from prefect.logging.handlers import APILogHandler
from prefect.runtime import flow_run, task_run
from prefect.states import Completed, State, StateType
from prefect.utilities import math as waits
from websockets import client as reconnections
from websockets.asyncio import connection as pings

from deployments.dag.walk import Handle, Walk
from deployments.prefect.artifacts import StageArtifacts, StudyArtifacts
from deployments.prefect.flow_run import beside, best_effort, end_killed, outlive_worker, prefect_state
from deployments.views.estimate import estimate
from deployments.views.index import completed, leave_for_people
from storage import attempts
from storage.errors import BadInput
from tasks.stage.attempt import attempt
from tasks.stage.outcome import (
    AWAITING_RETRY,
    CANCELLED,
    COMPLETED,
    FAILED,
    Outcome,
    in_words,
    outcome_of,
    state_of_study,
)
from tasks.stage.progress import FOR_THE_TERMINAL, listening

LOG = logging.getLogger("ratchet.local")
REPORT_EVERY_SECONDS = 10.0
LAST_REPORT_SECONDS = 5.0
RETRY_DELAY_SECONDS: list[float] = [10, 60]
for drawing in (waits, reconnections, pings):  # in threads beside the work, which has Python's own generator to itself
    vars(drawing)["random"] = random.Random()


def _forget_services() -> None:
    """A forked child, as a DataLoader's worker, has no thread of Prefect: its wait for one would end it with 1."""
    atexits = vars(threading).get("_threading_atexits", [])
    modules = [getattr(call, "func", call).__module__ for call in atexits]
    atexits[:] = [call for call, module in zip(atexits, modules, strict=True) if not str(module).startswith("prefect.")]


os.register_at_fork(after_in_child=_forget_services)


def run_here(walk: Walk, without_stopped: Callable[[], Handle | None] = lambda: None) -> State[Any]:
    """Runs each stage of the walk whose inputs are finished, in the present flow run.

    One that did not finish skips only those that need it; `without_stopped` then gives the stage that goes on without
    those, if there is one. Returns the study's state.
    """
    killed = beside(lambda: end_killed(walk.study))
    with get_client(sync_client=True) as client:
        study = StudyArtifacts(client, walk.study, str(flow_run.id))
        best_effort(study.clear)
        tasks = _Tasks(walk, lambda: study.progress(estimate(walk.handles)))
        outlive_worker(tasks.cancel)
        for handle in walk.handles:
            tasks.run_if_ready(handle)
        if not _stopped(walk.handles) and (rest := without_stopped()):
            tasks.run_if_ready(rest)
        best_effort(lambda: study.progress(estimate(walk.handles)))
        if walk.handles[-1].finished:
            best_effort(lambda: study.results(walk.handles[-1].run))
            leave_for_people(walk.handles[-1])
    killed.join(LAST_REPORT_SECONDS)
    return _final_state(walk.handles, tasks.cancelled)


def _final_state(handles: list[Handle], cancelled: bool = False) -> State[Any]:
    """The study's state, and what ended the stages that did not finish."""
    unfinished = [handle for handle in handles if not handle.finished]
    if not unfinished:
        return prefect_state(COMPLETED, completed(handles))
    tried = [handle for handle in unfinished if handle.outcome]
    causes = "\n".join(_causes(tried))
    stopped = cancelled or any(handle.outcome and handle.outcome.end_state == "sigterm" for handle in tried)
    if stopped and _being_cancelled():
        return prefect_state(CANCELLED, f"cancelled; what is done is kept, and a new start goes on\n{causes}")
    state = state_of_study([AWAITING_RETRY, *(handle.outcome.state for handle in tried if handle.outcome)])
    return prefect_state(state, causes or AWAITING_RETRY.words)


def _being_cancelled() -> bool:
    """Tells if a person cancelled the present flow run: Prefect's worker makes a SIGTERM of that. No if nobody says."""
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(flow_run.id).state
    except (httpx.HTTPError, PrefectException) as error:
        LOG.debug("not asked whether the run was cancelled: %s", error)
        return False
    return state is not None and state.type == StateType.CANCELLING


def _stopped(handles: list[Handle]) -> bool:
    """A signal stops the study, and so does another process at work on it, whose next stage we would take, and what a
    stage that waits for others cannot read.

    A stage's own share of steps stops only what needs it.
    """
    ended = [handle for handle in handles if handle.outcome]
    stop = {handle.outcome.end_state for handle in ended if handle.outcome} & {"interrupted", "sigterm", "held"}
    return bool(stop) or any(handle.waits_for for handle in ended)


def _require_readable(finished: Handle, handles: list[Handle]) -> None:
    """Ends a stage that cannot use what it reads, before hours go into what else it waits for."""
    for reader in handles:
        if any(parent is finished for parent in reader.inputs.values()) and (refusal := reader.refusal):
            reader.outcome = outcome_of(BadInput(refusal))


class _Tasks:
    """The stages of a walk as tasks of the present flow run; those that a stage reads are its parents in the graph.

    The tasks have no tags: for each task with tags Prefect asks the server for concurrency slots, which takes about
    2 s; the flow run carries them.
    """

    def __init__(self, walk: Walk, show_study: Callable[[], None]) -> None:
        """`show_study` shows now and then how far the whole study is."""
        self._walk, self._show_study = walk, show_study
        self._ended: dict[str, State[Any]] = {}
        self.cancelled = False
        """True where a person cancelled the study when no worker was there any more to end it."""

    def cancel(self) -> None:
        """Ends the stage at work as a worker does, by SIGTERM, and begins no other."""
        self.cancelled = True
        while not listening():  # between two stages Prefect would take it for a crash
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    def run_if_ready(self, handle: Handle) -> None:
        """Runs a stage, or shows the one that was finished before; nothing where it waits or the study was stopped."""
        if not handle.finished:
            handle.check_marker()  # its inputs may have finished since the walk
        if handle.finished:
            self._run(handle, lambda: _show_finished(handle))
        elif not handle.waits_for and not self.cancelled and not _stopped(self._walk.handles):
            self._run(handle, lambda: _attempt_here(handle, self._show_study))
            if handle.outcome and handle.outcome.end_state == "finished":
                handle.check_marker()
        if handle.finished:
            _require_readable(handle, self._walk.handles)

    def _run(self, handle: Handle, work: Callable[[], State[Any]]) -> None:
        """A lost connection (a hub that does not answer) is retried; all else needs a person, a change or a
        continuation."""
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


def _show_finished(handle: Handle) -> State[Any]:
    """A stage that was finished before this run, with its results."""
    with get_client(sync_client=True) as client:
        shown = StageArtifacts(client, handle.run, str(flow_run.id), task_run.id)
        best_effort(shown.results)
    return Completed(name="Cached", message=str(handle.run.path))


def _attempt_here(handle: Handle, show_study: Callable[[], None]) -> State[Any]:
    """Does one attempt; the outcome is left in the handle."""
    try:
        inputs = {role: parent.as_input() for role, parent in handle.inputs.items()}
        with _logs_to_prefect(), _shown_while_working(handle, show_study):
            handle.outcome = attempt(handle.stage, handle.config, handle.run, inputs, handle.own_source, handle.origin)
    except Exception as error:  # outside the attempt, so that no record has it
        LOG.exception("%s ended outside an attempt", handle.stage.name, extra=FOR_THE_TERMINAL)
        handle.outcome = outcome_of(error)
    state = handle.outcome.state
    if handle.outcome.retryable:
        state = replace(state, type=FAILED.type)  # Prefect retries no other
    return prefect_state(state, _message(handle, handle.outcome))


def _message(handle: Handle, outcome: Outcome) -> str:
    """Cause, remedy and log, on the task run's page."""
    if outcome.end_state == "finished":
        return str(handle.run.path)
    return f"{in_words(outcome.end_state)}: {outcome.text}" + "".join(f" Log: {log}" for log in _logs(handle))


def _causes(handles: list[Handle]) -> list[str]:
    """A line for each cause: the stages that it ended, what to do, and where the logs of a failure are."""
    by_cause: dict[str, list[Handle]] = {}
    for handle in handles:
        if handle.outcome:
            by_cause.setdefault(handle.outcome.text, []).append(handle)
    lines = []
    for cause, ended in by_cause.items():
        lines.append(f"{', '.join(handle.label for handle in ended)}: {cause}")
        diagnosed = [handle for handle in ended if handle.outcome and handle.outcome.diagnosis]
        lines += [f"log: {log}" for handle in diagnosed for log in _logs(handle)]
    return lines


def _logs(handle: Handle) -> list[Path]:
    """The log of the newest attempt; none where there was no attempt."""
    record = attempts.newest(handle.run.attempts)
    return [handle.run.attempts / f"{record['attempt']:04d}.log"] if record else []


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
