"""How a stage stands, in one line, from the run directory."""

from __future__ import annotations

from typing import Any

from deployments.dag.walk import Handle, Walk
from storage import attempts, locks
from storage.checkpoints import furthest
from storage.run_directory import read
from tasks.stage.outcome import in_words
from tasks.stage.progress import described, duration


def dry_line(handle: Handle) -> str:
    """Whether it would run."""
    saved = furthest(handle.run.checkpoints)
    state = "finished" if handle.finished else f"would go on (step {saved:,} is saved)" if saved else "would run"
    refused = f" ({handle.verdict.reason})" if handle.verdict.present and not handle.finished else ""
    return f"{handle.stage.name:<16} {handle.run.fingerprint[:12]}  {state}{refused}"


def status_line(handle: Handle, on_slurm: Any = None) -> str:
    """By the run directory; on SLURM first by its jobs and its flow run."""
    attempt = attempts.newest(handle.run.attempts)
    stands = standing(handle, attempt)
    if on_slurm is not None and not handle.finished and not handle.waits_for:
        begun = attempt is not None or handle.verdict.present
        more = running(handle, attempt) or (on_slurm.stand == "ready" and begun)
        stands = f"{on_slurm.line}; {stands}" if more else on_slurm.line
    return f"{handle.stage.name:<16} {handle.run.fingerprint[:12]}  {stands}"


def of_cell(handle: Handle, walk: Walk) -> str:
    """Which cell it belongs to, and in a sweep that it belongs to all; else empty."""
    cell = ", ".join(handle.cell) or ("all cells" if walk.cells else "")
    return f"  ({cell})" if cell else ""


def standing(handle: Handle, attempt: dict[str, Any] | None) -> str:
    """One line for `--status`, from the run directory alone."""
    if handle.finished:
        seconds = attempts.seconds_of(handle.run.attempts)
        return "finished" if seconds is None else f"finished in {duration(seconds)}"
    refused = f"marker refused ({handle.verdict.reason}); " if handle.verdict.present else ""
    number, end_state = (attempt or {}).get("attempt"), (attempt or {}).get("end_state")
    if running(handle, attempt):
        return f"{refused}running, attempt {number}: {described(read(handle.run.progress_file))}"
    if handle.waits_for:
        return refused + handle.verdict.reason
    if attempt is None:
        return refused + "not started"
    if end_state == "finished":
        return refused + "the same command runs it again"
    now, saved = read(handle.run.progress_file), furthest(handle.run.checkpoints)
    far = described(far_of(now))
    if end_state is None:  # progress.json was written now and then: what is saved may be further on
        of = f" of {now['total']:,}" if now.get("total") else ""
        where, step = ("", f" from step {saved:,}{of}") if saved else (f" at {far}" if far else "", "")
        return f"{refused}attempt {number} was killed{where}; the same command goes on{step}"
    line = f"{refused}{in_words(end_state)} in attempt {number}" + (f", {far}" if far else "")
    if summary := (attempt.get("diagnosis") or {}).get("summary", ""):
        line += f": {summary}"
    return line + (f"; step {saved:,} is saved" if saved else "")


def running(handle: Handle, attempt: dict[str, Any] | None) -> bool:
    """Whether the newest attempt has not ended and holds the run directory."""
    begun = attempt is not None and attempt.get("end_state") is None
    return begun and locks.holder(handle.run.path / "locks") is not None


def far_of(now: dict[str, Any]) -> dict[str, Any]:
    """How far, without what is left: nothing is under way."""
    return {key: value for key, value in now.items() if key in ("step", "total", "unit")}
