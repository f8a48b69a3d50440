"""How an attempt ended: the end states, their exit codes, and what a person is told to do."""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass

from storage import locks
from storage.errors import BadInput, CheckFailed, NoProgress, NumericalFailure, Stop

EXIT_CODES = {
    "finished": 0,
    "out_of_time": 75,
    "sigterm": 75,
    "interrupted": 130,
    "check_failed": 1,
    "no_progress": 1,
    "numerical_failure": 1,
    "bad_input": 2,
    "held": 2,
    "crashed": 1,
}

UNFINISHED = ("out_of_time", "sigterm")


def said(end_state: str) -> str:
    """An end state for people: what is to be continued is unfinished, whatever asked it to stop."""
    return "unfinished" if end_state in UNFINISHED else end_state.replace("_", " ")


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: end state, one line for a person, and what to do about it."""

    end_state: str
    message: str = ""
    diagnosis: dict[str, str] | None = None
    retryable: bool = False

    @property
    def told(self) -> str:
        """What happened and what to do, for a person."""
        remedy = self.diagnosis["resolution"] if self.diagnosis else ""
        return self.message if remedy in self.message else f"{self.message}. {remedy}"

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.end_state]


def outcome_of(error: BaseException) -> Outcome:
    """The end state that an exception stands for, with a diagnosis that says what to do."""
    if isinstance(error, Stop):
        return Outcome(error.cause, str(error))
    if isinstance(error, KeyboardInterrupt):
        return Outcome("interrupted", "interrupted twice: stopped without saving; the last checkpoint stands")
    if isinstance(error, BadInput):
        return diagnosed("bad_input", "bad input", str(error), "Correct the input and start the same command.")
    if isinstance(error, CheckFailed):
        return diagnosed("check_failed", "check failed", str(error), error.advice or "See the stage's log.")
    if isinstance(error, NumericalFailure):
        advice = "Lower the learning rate or the gradient norm; the checkpoint before this step is kept."
        return diagnosed("numerical_failure", "numerical failure", str(error), advice)
    if isinstance(error, NoProgress):
        advice = (
            "Remove the cause that the attempts name, then start the stage yourself: it goes on from what is saved."
        )
        return diagnosed("no_progress", "no progress", str(error), advice)
    if isinstance(error, locks.LockLost):
        advice = "Nothing is lost: the other attempt goes on. See in attempts/ where it runs."
        return diagnosed("crashed", "taken over", str(error), advice)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "Free space or raise the quota, then start the same command: it goes on from what is saved."
        return diagnosed("crashed", "disk full", f"could not write {error.filename or ''}: {error.strerror}", advice)
    detail = "".join(traceback.format_exception(error))
    summary = f"{type(error).__name__}: {error}"
    outcome = diagnosed("crashed", "crash", summary, "See the traceback in the attempt's record.", detail)
    return Outcome("crashed", summary, outcome.diagnosis, isinstance(error, ConnectionError | TimeoutError))


def diagnosed(end_state: str, category: str, summary: str, resolution: str, detail: str = "") -> Outcome:
    """An outcome whose diagnosis says what happened, and what to do."""
    diagnosis = {
        "level": "error",
        "category": category,
        "summary": summary,
        "detail": detail,
        "resolution": resolution,
    }
    return Outcome(end_state, summary, diagnosis)
