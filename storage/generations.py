"""The generation: how often a stage was begun again on purpose, and why.

It is raised, under the lock, when a marker was found invalid or when a person starts a stage again that had failed
or was cancelled. It changes only the idempotency key of a dispatch: the work itself continues from the newest
verified checkpoint.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from storage import attempts, durable, locks, markers
from storage.inside import refuse_links
from storage.locks import Lock
from storage.run_directory import RunDirectory

STARTED_AGAIN_AFTER = ("check_failed", "numerical_failure", "not_learning", "bad_input", "interrupted", "no_progress")

EARLIER = "earlier"
NOT_OF_THE_WORK = (EARLIER, "locks", "jobs", "generation.json")


def current(run: RunDirectory) -> dict[str, Any]:
    """`{"generation": 0, ...}` before any was recorded or when the file is damaged. Raises OSError when the disk does
    not give it: the number of a generation long past would find a flow run long ended."""
    try:
        now = durable.read_json(run.generation_file)
        return {"generation": int(now["generation"]), "history": list(now["history"])}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return {"generation": 0, "history": []}


def raised_for_dispatch(run: RunDirectory, input_digests: dict[str, str], again: str = "") -> int:
    """The generation that the next dispatch belongs to, raised when it begins the stage again.

    `again` says why a person starts what had failed or was cancelled; empty when nobody does. A stage that turns out
    to be finished is left so: it ended a moment ago, or on another host whose marker NFS did not show. Raises Held
    when another process is at work on the stage.
    """
    if again or markers.check(run, input_digests).present:
        lock = locks.acquire(run.path / "locks")
        try:
            run.refresh()
            if not markers.adopt(run, input_digests, lock):
                raise_for_new_attempt(run, input_digests, lock, again)
        finally:
            lock.release()
    return int(current(run)["generation"])


def raise_for_new_attempt(run: RunDirectory, input_digests: dict[str, str], lock: Lock, again: str = "") -> None:
    """Raises the generation when this attempt begins the stage again; called by the holder of `lock`.

    What a dispatch raised already after the newest attempt is not raised a second time by the attempt it started.
    """
    verdict = markers.check(run, input_digests, full=True)
    before = attempts.newest(run.attempts)
    now = current(run)
    after = before["attempt"] if before else 0
    if verdict.present:
        reason = f"the marker was refused: {verdict.reason}"
    elif again:
        reason = again
    elif before and before.get("end_state") in STARTED_AGAIN_AFTER:
        if any(entry.get("after_attempt") == after for entry in now["history"]):
            return
        reason = f"started again after attempt {before['attempt']} ended {before['end_state']}"
    else:
        return
    lock.check()  # reading every byte took its time
    _raise(run, now, reason, after)
    run.marker_file.unlink(missing_ok=True)  # only now: an attempt that dies before must find it again


def begin_anew(run: RunDirectory) -> Path | None:
    """Moves all that the stage made into `earlier/<generation>/`, so that its next attempt begins with nothing.

    None where it made nothing. The marker goes last: whoever is killed before has finished outputs, or ones that are
    refused by name. Raises Held when another process is at work on the stage, BadInput where a link stands there.
    """
    made = [path for path in sorted(run.path.glob("*")) if path.name not in NOT_OF_THE_WORK]
    if not made:
        return None
    refuse_links(run.path)
    lock = locks.acquire(run.path / "locks")
    try:
        now = current(run)
        before = attempts.newest(run.attempts)
        _raise(run, now, "a person asked for a fresh one", before["attempt"] if before else 0)
        aside = run.path / EARLIER / str(now["generation"])
        aside.mkdir(parents=True, exist_ok=True)
        for path in sorted(made, key=lambda one: one == run.marker_file):
            lock.check()
            path.rename(aside / path.name)
    finally:
        lock.release()
    return aside


def _raise(run: RunDirectory, now: dict[str, Any], reason: str, after: int) -> None:
    number = now["generation"] + 1
    history = [*now["history"], {"generation": number, "reason": reason, "after_attempt": after}]
    durable.write_json(run.generation_file, {"generation": number, "history": history})
