"""Shows on a flow run's page what its jobs write to disk: log, progress, jobs and nodes, diagnosis, results.

Best effort and one way: nothing here is needed for the work, and a job never talks to Prefect.
"""

import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import LogCreate

from deployments.prefect.artifacts import StageArtifacts
from deployments.prefect.flow_run import best_effort
from deployments.slurm.job.journal import Journal, Submission, run_of
from deployments.slurm.pool.reconcile import Seen
from storage import durable, reading
from tasks.findings.table import without_links

LOG = logging.getLogger("ratchet.slurm")
SHOW_EVERY_SECONDS = 20.0
"""Interval for a run that goes on. Each log and each bar is a write, and SQLite refuses those of two at once."""
AT_ONCE_BYTES = 60_000
LAST_BYTES = 1_000_000
"""Most that is shown of what an ended job wrote since the last poll; the file has it all."""
TAIL_LINES = 30
LINE = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d) (?P<level>[A-Z]+) (?P<name>\S+): (?P<message>.*)"
)
"""A line of the job's log as `flows.stage` writes it; whatever else is there is shown as it is."""


class Mirror:
    """Record of what was shown so far of each watched run."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._artifacts: dict[str, StageArtifacts] = {}
        self._shown_at: dict[str, float] = {}

    def show(self, seen: Sequence[Seen]) -> None:
        """Shows now and then what is new of each run with a job; an error of one hides no other."""
        now = time.monotonic()
        for watched in seen:
            if watched.submissions and now - self._shown_at.get(watched.run.id, -math.inf) >= SHOW_EVERY_SECONDS:
                self._shown_at[watched.run.id] = now
                best_effort(partial(self._show_log, watched))
                best_effort(partial(self._show_state, watched))
        alive = {watched.run.id for watched in seen}
        self._artifacts = {run: shown for run, shown in self._artifacts.items() if run in alive}
        self._shown_at = {run: at for run, at in self._shown_at.items() if run in alive}

    def show_end(self, seen: Seen, ended: Submission) -> None:
        """The last of a job: the rest of its log, its diagnosis, and the results when it finished the stage."""
        best_effort(partial(self._show_log, seen, True))
        best_effort(partial(self._show_state, seen, ended))
        if ended.end and ended.end.follows == "Completed":
            best_effort(lambda: self._of(seen).results())

    def _of(self, seen: Seen) -> StageArtifacts:
        if seen.run.id not in self._artifacts:
            shown = StageArtifacts(self._client, run_of(Path(seen.run.folder)), seen.run.id)
            shown.clear()
            self._artifacts[seen.run.id] = shown
        return self._artifacts[seen.run.id]

    def _show_state(self, seen: Seen, ended: Submission | None = None) -> None:
        shown, journal = self._of(seen), Journal(Path(seen.run.folder))
        submissions = [*seen.submissions[:-1], ended or seen.submissions[-1]]
        shown.text("jobs", jobs_markdown(journal, submissions, seen.attempt), f"`{journal.folder}`")
        if (journal.folder.parent / "progress.json").exists():
            shown.progress()
            shown.curves()

    def _show_log(self, seen: Seen, ended: bool = False) -> None:
        """The log's new lines; all that are left where the job ended (the last ones of very many)."""
        file = Journal(Path(seen.run.folder)).log(seen.submissions[-1])
        if ended and (last := file.stat().st_size - LAST_BYTES) > _shown(file):
            durable.replace_quickly(_mark(file), last)
        while self._show_lines(file, seen.run.id, ended) and ended:
            pass

    def _show_lines(self, file: Path, run_id: str, ended: bool) -> int:
        """The next lines. How far it was shown is kept beside it, so a new worker shows nothing twice."""
        done = _shown(file)
        with reading.opened(file, links=False) as log:  # others may read what is shown of it
            log.seek(done)
            new = log.read(AT_ONCE_BYTES)
        whole = new[: new.rfind(b"\n") + 1]
        if len(new) == AT_ONCE_BYTES:
            whole = whole or new  # a bar that is drawn over and over again ends no line
        elif ended:
            whole = new
        lines = whole.decode(errors="replace").splitlines()
        if logs := [_as_log(line, run_id) for line in lines if line.strip()]:
            self._client.create_logs(logs)
        if whole:
            durable.replace_quickly(_mark(file), done + len(whole))
        return len(whole)


class Beside:
    """A mirror in a thread of its own: a server that is busy, which Prefect's client waits for up to a minute at each
    request, holds up what is shown of jobs, and no state of a run."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._due: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._work, daemon=True, name="mirror").start()

    def show(self, seen: Sequence[Seen]) -> None:
        if self._due.empty():  # else a later poll shows it
            self._due.put(partial(self._mirror.show, seen))

    def show_end(self, seen: Seen, ended: Submission) -> None:
        self._due.put(partial(self._mirror.show_end, seen, ended))

    def _work(self) -> None:
        while True:
            best_effort(self._due.get())


def _mark(log: Path) -> Path:
    return log.with_suffix(".shown")


def _shown(log: Path) -> int:
    try:
        return int(reading.read_bytes(_mark(log)))
    except (OSError, ValueError):
        return 0


def jobs_markdown(journal: Journal, submissions: Sequence[Submission], attempt: Any = None) -> str:
    """A run's jobs, newest first, where their logs are, and of a failure the cause, what to do and the log's end."""
    last = submissions[-1]
    lines = []
    cause = last.end.diagnosis if last.end else None
    if cause is not None and cause.level == "error":
        lines += [without_links(f"### {cause.category}: {cause.summary}"), "", without_links(cause.resolution), ""]
        lines += [*_fenced(cause.detail.rstrip().splitlines()), ""] if cause.detail else []
    if attempt:
        numerics = attempt.get("numerics") or {}
        device = numerics.get("device_model") or ""
        where = f"Attempt {attempt['attempt']} on {attempt.get('host')}{f', {device}' if device else ''}"
        lines += [without_links(where), ""]
    lines += ["| job | submitted | ended | what followed |", "|---|---|---|---|"]
    for entry in reversed(submissions):
        submitted = time.strftime("%m-%d %H:%M:%S", time.localtime(entry.submitted_at))
        ended = "queued or running" if entry.end is None else entry.end.diagnosis.summary if entry.end.diagnosis else ""
        follows = entry.end.follows if entry.end else ""
        lines.append(without_links(f"| {entry.job_id or 'not known yet'} | {submitted} | {ended} | {follows} |"))
    lines += ["", f"    tail -f {journal.log(last)}", "", f"Script: `{journal.script(last)}`"]
    if last.end and last.end.follows == "Failed" and (tail := reading.last_lines(journal.log(last), TAIL_LINES)):
        lines += ["", "The end of the log:", "", *_fenced(tail)]
    return "\n".join(lines)


def _fenced(lines: Sequence[str]) -> list[str]:
    """Lines of a log, which cannot end the fence around them."""
    return ["```", *(line.replace("```", "'''") for line in lines), "```"]


def _as_log(line: str, flow_run: str) -> LogCreate:
    match = LINE.match(line)
    time: Any = datetime.fromisoformat(match["time"]) if match else datetime.now(UTC)  # Prefect's type is its own
    if match is None:
        return LogCreate(name="job", level=logging.INFO, message=line, timestamp=time, flow_run_id=UUID(flow_run))
    return LogCreate(
        name=match["name"],
        level=logging.getLevelNamesMapping().get(match["level"], logging.INFO),
        message=match["message"],
        timestamp=time,
        flow_run_id=UUID(flow_run),
    )
