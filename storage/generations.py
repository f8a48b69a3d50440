"""The generation: how often a stage was begun again on purpose, and why.

It is raised, under the lock, when a marker was found invalid or when a person starts a stage again that had failed
or was cancelled. It changes only the idempotency key of a dispatch: the work itself continues from the newest
verified checkpoint.
"""

import logging
from pathlib import Path
from typing import TypedDict

from storage import attempts, durable, locks, markers
from storage.inside import refuse_links
from storage.locks import Lock
from storage.run_directory import RunDirectory

LOG = logging.getLogger("ratchet.storage")
STARTED_AGAIN_AFTER = ("check_failed", "numerical_failure", "not_learning", "bad_input", "interrupted", "no_progress")

EARLIER = "earlier"
NOT_OF_THE_WORK = (EARLIER, "locks", "jobs", "generation.json")


class Raise(TypedDict):
    """One raise of the generation, after the attempt of this number."""

    generation: int
    reason: str
    after_attempt: int


class Generation(TypedDict):
    """The content of generation.json."""

    generation: int
    history: list[Raise]


def current(run: RunDirectory) -> Generation:
    """The generation and its history; 0 before any was recorded or when the file is damaged.

    Raises OSError when the disk cannot be read: an outdated number would find a flow run that ended long ago.
    """
    try:
        generation = durable.read_json(run.generation_file)
        return {"generation": int(generation["generation"]), "history": list(generation["history"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {"generation": 0, "history": []}


def raised_for_dispatch(run: RunDirectory, input_digests: dict[str, str], again: str = "") -> int:
    """The generation that the next dispatch belongs to, raised when it begins the stage again.

    `again` says why a person restarts a stage that failed or was cancelled; empty when nobody does. A finished stage
    stays finished: it ended a moment ago, or on another host whose marker NFS did not show. Raises Held when another
    process is at work on the stage.
    """
    if again or markers.check(run, input_digests).present:
        lock = locks.acquire(run.path / "locks")
        try:
            run.refresh()
            if not markers.adopt(run, input_digests, lock):
                raise_for_new_attempt(run, input_digests, lock, again)
        finally:
            lock.release()
    return current(run)["generation"]


def raise_for_new_attempt(run: RunDirectory, input_digests: dict[str, str], lock: Lock, again: str = "") -> None:
    """Raises the generation when this attempt begins the stage again; called by the holder of `lock`.

    A generation that a dispatch raised is not raised a second time by the attempt that it started.
    """
    verdict = markers.check(run, input_digests, full=True)
    attempt = attempts.newest(run.attempts)
    if attempt is None and (files := sorted(run.attempts.glob("[0-9]*.json"))):
        LOG.warning("%s cannot be read as the record of an attempt, and counts as none", files[-1])
    generation = current(run)
    number = attempt["attempt"] if attempt else 0
    if verdict.present:
        reason = f"the marker was refused: {verdict.reason}"
    elif again:
        reason = again
    elif attempt and attempt.get("end_state") in STARTED_AGAIN_AFTER:
        if any(entry.get("after_attempt") == number for entry in generation["history"]):
            return
        reason = f"started again after attempt {attempt['attempt']} ended {attempt['end_state']}"
    else:
        return
    lock.check()  # reading every byte took its time
    _raise(run, generation, reason, number)
    run.marker_file.unlink(missing_ok=True)  # only now: an attempt that dies before must find it again


def begin_anew(run: RunDirectory) -> Path | None:
    """Moves all that the stage made into `earlier/<generation>/`, so that its next attempt begins with nothing.

    Returns that folder, None where the stage made nothing. The marker goes last, so that a kill before leaves a
    finished run or one that is refused by name. Raises Held when another process is at work on the stage, BadInput
    where there is a link.
    """
    outputs = [path for path in sorted(run.path.glob("*")) if path.name not in NOT_OF_THE_WORK]
    if not outputs:
        return None
    refuse_links(run.path)
    lock = locks.acquire(run.path / "locks")
    try:
        generation = current(run)
        attempt = attempts.newest(run.attempts)
        _raise(run, generation, "a person asked for a fresh one", attempt["attempt"] if attempt else 0)
        aside = run.path / EARLIER / str(generation["generation"])
        aside.mkdir(parents=True, exist_ok=True)
        for path in sorted(outputs, key=lambda path: path == run.marker_file):
            lock.check()
            path.rename(aside / path.name)
    finally:
        lock.release()
    return aside


def _raise(run: RunDirectory, before: Generation, reason: str, attempt: int) -> None:
    number = before["generation"] + 1
    history = [*before["history"], Raise(generation=number, reason=reason, after_attempt=attempt)]
    durable.write_json(run.generation_file, Generation(generation=number, history=history))
