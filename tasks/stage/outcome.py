"""Outcomes of attempts: the table of end states, the end state of each exception, and diagnoses for people."""

from __future__ import annotations

import errno
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, cast, get_args

from storage import locks
from storage.attempts import AttemptRecord
from storage.errors import BadInput, CheckFailed, NoProgress, NotLearning, NumericalFailure, Stop
from storage.reading import UNANSWERED

Level = Literal["info", "warning", "error"]
Category = Literal[
    # of an attempt
    "bad input",
    "check failed",
    "crash",
    "directory gone",
    "disk full",
    "no progress",
    "not learning",
    "numerical failure",
    "stalled",
    "taken over",
    # of a job
    "cancelled",
    "deadline",
    "ended",
    "environment",
    "finished",
    "held",
    "killed",
    "lost",
    "node failure",
    "not now",
    "not submitted",
    "out of memory",
    "output folder",
    "preempted",
    "refused",
    "revoked",
    "time limit",
    # of a record that another version of this code wrote
    "other",
]
"""The categories of a diagnosis. Code decides by them, never by the text of a diagnosis."""


@dataclass(frozen=True)
class Diagnosis:
    """A diagnosis: the cause (`summary`, `detail`) and the remedy (`resolution`, empty: none needed)."""

    level: Level
    category: Category
    summary: str
    detail: str = ""
    resolution: str = ""

    @property
    def text(self) -> str:
        """The diagnosis in sentences."""
        return " ".join(part.rstrip(".") + "." for part in (self.summary, self.detail, self.resolution) if part)

    def as_dict(self) -> dict[str, str]:
        return asdict(self)

    @classmethod
    def read(cls, values: Mapping[str, object] | None) -> Diagnosis | None:
        """Reads the diagnosis of a record or a journal; None when it has none.

        Another version of this code may have written it: an unknown category is read as `other`, a level as `error`.
        """
        if not values:
            return None
        level, category = values.get("level"), values.get("category")
        texts = (str(values.get(name) or "") for name in ("summary", "detail", "resolution"))
        return cls(
            cast("Level", level) if level in get_args(Level) else "error",
            cast("Category", category) if category in get_args(Category) else "other",
            *texts,
        )


INSTALLED = ("site-packages", "dist-packages", Path(sysconfig.get_path("stdlib")).name)
ROOMS = tuple(f"{Path(__file__).parents[2] / room}/" for room in ("flows", "deployments", "tasks", "storage"))
OUT_OF_MEMORY = (
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DefaultCPUAllocator: can't allocate memory",
)
"""What torch says of it, which not all of its errors tell by their class."""
SHOWN_FRAMES = 3
"""Frames of a traceback that are shown after the line of a person's own code."""


@dataclass(frozen=True)
class PrefectState:
    """A Prefect state in which an attempt or a study ends where it ran, and its exit code."""

    name: str
    type: str
    exit_code: int
    words: str
    condition: str = ""
    """The condition under which the same command goes on."""


BAD_INPUT = PrefectState("BadInput", "FAILED", 2, "bad input", "after the correction")
HELD = PrefectState("Held", "FAILED", 2, "held", "when the process that holds the stage has ended")
FAILED = PrefectState("Failed", "FAILED", 1, "failed", "after the correction")
CRASHED = PrefectState("Crashed", "CRASHED", 1, "failed", "when the cause is gone")
CANCELLED = PrefectState("Cancelled", "CANCELLED", 130, "interrupted")
# Prefect's own AwaitingRetry has the type Scheduled: Prefect would at once run it again in the process that just ended
AWAITING_RETRY = PrefectState("AwaitingRetry", "CANCELLED", 75, "unfinished")
COMPLETED = PrefectState("Completed", "COMPLETED", 0, "finished")

PRECEDENCE = (BAD_INPUT, FAILED, CRASHED, HELD, CANCELLED, AWAITING_RETRY, COMPLETED)
"""A study ends in the first of these states that one of its stages has."""


def state_of_study(stages: Iterable[PrefectState]) -> PrefectState:
    """The state of a study from those of its stages; without any it is finished."""
    return min(stages, key=PRECEDENCE.index, default=COMPLETED)


def state_named(name: str | None) -> PrefectState:
    """The state of this name; FAILED for any other, which Prefect alone gives to a flow run."""
    return next((state for state in PRECEDENCE if state.name == name), FAILED)


Follows = Literal["Completed", "AwaitingRetry", "Failed", "Cancelled"]
"""The state that the worker of the pool gives to a flow run when its job has ended."""


@dataclass(frozen=True)
class EndState:
    """An end of an attempt, and what follows: a row of DESIGN section 4."""

    state: PrefectState
    """The state of the attempt's task or flow run where it ran, with the exit code."""
    follows: Follows
    """The state on SLURM, unless SLURM says more: AwaitingRetry goes on by itself, Failed waits for a person."""
    words: str

    @property
    def exit_code(self) -> int:
        return self.state.exit_code

    @property
    def goes_on(self) -> bool:
        """True if a next job continues by itself."""
        return self.follows == "AwaitingRetry"

    @property
    def stops(self) -> bool:
        """True if nothing happens until a person acts on the cause."""
        return self.follows == "Failed"


END_STATES = {
    "finished": EndState(COMPLETED, "Completed", "finished"),
    "out_of_time": EndState(AWAITING_RETRY, "AwaitingRetry", "stopped at its limit"),
    "sigterm": EndState(AWAITING_RETRY, "AwaitingRetry", "stopped by SIGTERM"),
    "interrupted": EndState(CANCELLED, "Cancelled", "interrupted"),
    "check_failed": EndState(FAILED, "Failed", "check failed"),
    "not_learning": EndState(FAILED, "Failed", "not learning"),
    "no_progress": EndState(FAILED, "Failed", "no progress"),
    "numerical_failure": EndState(FAILED, "Failed", "numerical failure"),
    "bad_input": EndState(BAD_INPUT, "Failed", "bad input"),
    # a command ends as for bad input and names the holder; a job waits, and leaves it to the next one
    "held": EndState(HELD, "AwaitingRetry", "held"),
    "crashed": EndState(CRASHED, "AwaitingRetry", "crashed"),
}


def in_words(end_state: str) -> str:
    """An end state for people; also one that only another version of this code knows."""
    row = END_STATES.get(end_state)
    return row.words if row else end_state.replace("_", " ")


def stops(end_state: str | None) -> bool:
    """True if this end state of an attempt stops its stage until a person acts."""
    return end_state in END_STATES and END_STATES[end_state].stops


@dataclass(frozen=True)
class Outcome:
    """The end of an attempt: end state, one line for a person, and a diagnosis with advice."""

    end_state: str
    message: str = ""
    diagnosis: Diagnosis | None = None
    retryable: bool = False

    @property
    def text(self) -> str:
        """The message and the advice, for a person."""
        advice = self.diagnosis.resolution if self.diagnosis else ""
        separator = "\n" if "\n" in self.message else ". "
        return self.message if advice in self.message else f"{self.message}{separator}{advice}"

    @property
    def state(self) -> PrefectState:
        return END_STATES[self.end_state].state

    @property
    def exit_code(self) -> int:
        return self.state.exit_code

    def write_to(self, record: AttemptRecord) -> None:
        """Writes the end into the attempt's record."""
        record.end(self.end_state, self.exit_code, self.diagnosis.as_dict() if self.diagnosis else None)


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of an exception, with a diagnosis that says what to do."""
    if isinstance(error, Stop):
        return Outcome(error.cause, str(error))
    if isinstance(error, KeyboardInterrupt):
        return Outcome("interrupted", "interrupted twice: stopped without saving; the last checkpoint remains")
    if isinstance(error, SystemExit):
        advice = "Let it return its result instead: whatever the exit code, its work counts as not done."
        return diagnosed("crashed", "crash", f"the stage's work called sys.exit({error.code!r})", advice)
    if isinstance(error, BadInput):
        return diagnosed("bad_input", "bad input", str(error), "Correct the input and start the same command.")
    if isinstance(error, CheckFailed):
        return diagnosed("check_failed", "check failed", str(error), error.advice or "See the stage's log.")
    if isinstance(error, NumericalFailure):
        advice = (
            "Look at the size of the inputs first, then lower the learning rate or the gradient norm; the checkpoint "
            "before this step is kept, and the step itself, with weights and batch, in failed-step/"
        )
        return diagnosed("numerical_failure", "numerical failure", str(error), advice)
    if isinstance(error, NotLearning):
        return diagnosed("not_learning", "not learning", str(error), f"{error.advice}.")
    if isinstance(error, NoProgress):
        advice = (
            "Remove the cause that the attempts name, then start the stage yourself: it goes on from what is saved."
        )
        return diagnosed("no_progress", "no progress", str(error), advice)
    if isinstance(error, locks.DirectoryGone):
        advice = "What it held is lost, unless it was moved: put it back, or the same command begins the stage anew."
        return diagnosed("crashed", "directory gone", str(error), advice)
    if isinstance(error, locks.LockLost):
        advice = "Nothing is lost: the other attempt goes on. See in attempts/ where it runs."
        return diagnosed("crashed", "taken over", str(error), advice)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        advice = "Free space or raise the quota, then start the same command: it goes on from what is saved."
        return diagnosed("crashed", "disk full", f"could not write {error.filename or ''}: {error.strerror}", advice)
    detail = "".join(traceback.format_exception(error))
    if isinstance(error, OSError) and error.errno in UNANSWERED:
        summary = f"the disk did not answer: {error.strerror}: {error.filename or 'it names no file'}"
        advice = "Nothing that was saved is lost: the stage is tried again here, or goes on with the same command."
        return replace(diagnosed("crashed", "crash", summary, advice, detail), retryable=True)
    if is_out_of_memory(error):
        advice = (
            "Take a device with more memory, or lower execution.micro_batch_examples: validations and records take as "
            "many examples at once. A training that goes on with fewer needs execution.allow_numerics_change=true too"
        )
        summary = f"out of memory: {traceback.format_exception_only(error)[0].splitlines()[0]}"
        return diagnosed("crashed", "out of memory", summary, advice, detail)
    summary, frames = f"{type(error).__name__}: {error}", _from_own_code(error)
    if frames:
        summary += f" ({Path(frames[0].filename).name}:{frames[0].lineno})"
    outcome = diagnosed("crashed", "crash", summary, "The whole traceback is in the attempt's log.", detail)
    message = "\n".join([summary, *"".join(traceback.format_list(frames)).splitlines()])
    return Outcome("crashed", message, outcome.diagnosis, isinstance(error, ConnectionError | TimeoutError))


def is_out_of_memory(error: BaseException) -> bool:
    """True if an allocation failed, of this process or of a GPU."""
    in_words = isinstance(error, RuntimeError) and any(words in str(error) for words in OUT_OF_MEMORY)
    return in_words or isinstance(error, MemoryError)


def _from_own_code(error: BaseException) -> list[traceback.FrameSummary]:
    """The end of the traceback from the innermost line of a person's code, else of Ratchet's, else the last."""
    frames = traceback.extract_tb(error.__traceback__)
    uninstalled = [i for i, frame in enumerate(frames) if not {*Path(frame.filename).parts} & {*INSTALLED}]
    candidates = [i for i in uninstalled if not frames[i].filename.startswith(ROOMS)] or uninstalled
    tail = frames[candidates[-1] :] if candidates else frames[-1:]
    return [*tail[:1], *tail[1:][-SHOWN_FRAMES:]]


def diagnosed(end_state: str, category: Category, summary: str, resolution: str, detail: str = "") -> Outcome:
    """An outcome with a diagnosis of level `error`."""
    return Outcome(end_state, summary, Diagnosis("error", category, summary, detail, resolution))
