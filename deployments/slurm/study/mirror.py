"""Shows in a study's flow run what its jobs write to disk: log, progress, jobs and nodes, diagnosis, results.

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
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import LogCreate

from deployments.prefect.artifacts import StageArtifacts
from deployments.prefect.flow_run import beside, best_effort
from deployments.slurm.job.journal import Journal, Submission, jobs_folder
from storage import attempts, durable, reading
from storage.run_directory import RunDirectory
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
    """What is shown of the stages of one flow run, each on the page of its task.

    A thread of its own shows it: a server that is busy, which Prefect's client waits for up to a minute at each
    request, holds up nothing else.
    """

    def __init__(self, flow_run: str) -> None:
        self._flow_run = flow_run
        self._client = get_client(sync_client=True)
        self._artifacts: dict[Path, StageArtifacts] = {}
        self._shown_at: dict[Path, float] = {}
        self._due: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = beside(self._work)

    def show(self, stages: Sequence[tuple[RunDirectory, UUID]]) -> None:
        """Shows now and then what is new of stages that are under way, given with the ids of their tasks."""
        if self._due.empty():  # else a later look shows it
            for run, task in stages:
                if time.monotonic() - self._shown_at.get(run.path, -math.inf) >= SHOW_EVERY_SECONDS:
                    self._shown_at[run.path] = time.monotonic()
                    self._due.put(partial(self._show, run, task))

    def show_end(self, run: RunDirectory, task: UUID, finished: bool) -> None:
        """The last of a stage: the rest of its job's log, its diagnosis, and the results when it is finished."""
        if run.path in self._shown_at:
            self._due.put(partial(self._show, run, task, ended=True))
        if finished:
            self._due.put(lambda: self._of(run, task).results())

    def close(self, seconds: float) -> None:
        """Shows what is left, for so long at most."""
        self._due.put(None)
        self._thread.join(seconds)

    def _work(self) -> None:
        with self._client:
            while show := self._due.get():
                best_effort(show)

    def _of(self, run: RunDirectory, task: UUID) -> StageArtifacts:
        if run.path not in self._artifacts:
            self._artifacts[run.path] = StageArtifacts(self._client, run, self._flow_run, task)
        return self._artifacts[run.path]

    def _show(self, run: RunDirectory, task: UUID, ended: bool = False) -> None:
        journal = Journal(jobs_folder(run))
        if submissions := journal.all():
            best_effort(partial(self._show_log, journal.log(submissions[-1]), task, ended))
            shown = self._of(run, task)
            text = jobs_markdown(journal, submissions, attempts.newest(run.attempts))
            shown.text("jobs", text, f"`{journal.folder}`")
            if run.progress_file.exists():
                shown.progress()
                shown.curves()

    def _show_log(self, file: Path, task: UUID, ended: bool) -> None:
        """The log's new lines; all that are left where the job ended (the last ones of very many)."""
        if ended and (last := file.stat().st_size - LAST_BYTES) > _shown(file):
            durable.replace_quickly(_mark(file), last)
        while self._show_lines(file, task, ended) and ended:
            pass

    def _show_lines(self, file: Path, task: UUID, ended: bool) -> int:
        """The next lines. How far it was shown is kept beside it, so a flow run that is retried shows nothing twice."""
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
        page = {"flow_run_id": UUID(self._flow_run), "task_run_id": task}
        if logs := [_as_log(line, page) for line in lines if line.strip()]:
            self._client.create_logs(logs)
        if whole:
            durable.replace_quickly(_mark(file), done + len(whole))
        return len(whole)


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


def _as_log(line: str, page: dict[str, UUID]) -> LogCreate:
    match = LINE.match(line)
    name, level, message = ("job", "INFO", line) if match is None else match.group("name", "level", "message")
    when: Any = datetime.fromisoformat(match["time"]) if match else datetime.now(UTC)  # Prefect's type is its own
    number = logging.getLevelNamesMapping().get(level, logging.INFO)
    return LogCreate(name=name, level=number, message=message, timestamp=when, **page)
