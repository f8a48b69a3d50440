"""Runs a study here: each stage to its end, in page order. What is finished is decided by the markers on disk."""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from deployments.dag.page import Page
from deployments.dag.walk import Handle, Walk
from deployments.views.index import completed, leave_for_people
from storage import attempts
from storage.errors import BadInput
from tasks.stage.attempt import attempt
from tasks.stage.outcome import (
    AWAITING_RETRY,
    CANCELLED,
    COMPLETED,
    Outcome,
    PrefectState,
    in_words,
    outcome_of,
    state_of_study,
)
from tasks.stage.progress import FOR_THE_TERMINAL

LOG = logging.getLogger("ratchet.local")
RETRY_DELAY_SECONDS: list[float] = [10, 60]
"""A lost connection (to a hub that does not answer) is tried again; all else needs a person or a continuation."""


class Host(Protocol):
    """Where the stages of a study work, and who sees them."""

    def work(self, handle: Handle) -> None:
        """Does the work of a stage that may start, again where time may help; leaves its outcome in the handle."""

    def show_finished(self, handle: Handle) -> None:
        """Shows a stage that was finished before this start."""

    def is_cancelled(self) -> bool:
        """True where a person cancelled the study."""


class ThisProcess:
    """Does the work in this process, and shows nothing: the run directories hold all."""

    def work(self, handle: Handle) -> None:
        handle.outcome = attempt_at(handle)
        for delay in RETRY_DELAY_SECONDS:
            if handle.outcome.retryable:
                time.sleep(delay)
                handle.outcome = attempt_at(handle)

    def show_finished(self, handle: Handle) -> None:
        pass

    def is_cancelled(self) -> bool:
        return False


def run_study(
    walk: Walk, host: Host, without_stopped: Callable[[], Handle | None] = lambda: None
) -> tuple[PrefectState, str]:
    """Runs each stage of the walk whose inputs are finished; returns the study's state, and what ended the others.

    One that did not finish skips only those that need it; `without_stopped` then gives the stage that goes on without
    those, if there is one.
    """
    for handle in walk.handles:
        _run_if_ready(walk, handle, host)
    if not _stopped(walk.handles) and (rest := without_stopped()):
        _run_if_ready(walk, rest, host)
    if walk.handles[-1].finished:
        leave_for_people(walk.handles[-1])
    return _end(walk.handles, host)


def run_in_this_process(page: Page, study: Any, walk: Walk) -> tuple[PrefectState, str]:
    """Runs a walked page; returns the study's state, and what ended the stages that did not finish."""
    walk.close_to_others()
    page.keep_sources(walk)
    return run_study(walk, ThisProcess(), lambda: page.sweep_without_stopped(study, walk))


def attempt_at(handle: Handle) -> Outcome:
    """One attempt at a stage, in this process."""
    try:
        inputs = {role: parent.as_input() for role, parent in handle.inputs.items()}
        return attempt(handle.stage, handle.config, handle.run, inputs, handle.own_source, handle.origin)
    except Exception as error:  # outside the attempt, so that no record has it
        LOG.exception("%s ended outside an attempt", handle.stage.name, extra=FOR_THE_TERMINAL)
        return outcome_of(error)


def message(handle: Handle, outcome: Outcome) -> str:
    """How a stage ended, for people: its folder, or cause, remedy and log."""
    if outcome.end_state == "finished":
        return str(handle.run.path)
    return f"{in_words(outcome.end_state)}: {outcome.text}" + "".join(f" Log: {log}" for log in _logs(handle))


def _run_if_ready(walk: Walk, handle: Handle, host: Host) -> None:
    """Runs a stage, or shows the one that was finished before; nothing where it waits or the study was stopped."""
    if not handle.finished:
        handle.check_marker()  # its inputs may have finished since the walk
    if handle.finished:
        host.show_finished(handle)
    elif not handle.waits_for and not _stopped(walk.handles):
        host.work(handle)
        if handle.outcome and handle.outcome.end_state == "finished":
            handle.check_marker()
    if handle.finished:
        _require_readable(handle, walk.handles)


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


def _end(handles: list[Handle], host: Host) -> tuple[PrefectState, str]:
    """The study's state, and what ended the stages that did not finish."""
    unfinished = [handle for handle in handles if not handle.finished]
    if not unfinished:
        return COMPLETED, completed(handles)
    tried = [handle for handle in unfinished if handle.outcome]
    causes = "\n".join(_causes(tried))
    if any(handle.outcome and handle.outcome.end_state == "sigterm" for handle in tried) and host.is_cancelled():
        return CANCELLED, f"cancelled; what is done is kept, and a new start goes on\n{causes}"
    state = state_of_study([AWAITING_RETRY, *(handle.outcome.state for handle in tried if handle.outcome)])
    return state, causes or AWAITING_RETRY.words


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
