"""View of a study while it runs: one line a stage, read from the run directories.

The display knows only the files that every stage writes, so it shows a stage in the same way wherever it runs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from deployments.dag.walk import Handle
from deployments.views.estimate import estimate
from deployments.views.listing import far_of
from flows.command.terminal import Terminal
from storage import attempts, locks
from storage.run_directory import read
from tasks.stage.progress import described, duration

UPDATE_EVERY_SECONDS = 1.0
LINE_EVERY_SECONDS = 15.0
ESTIMATE_EVERY_SECONDS = 5.0
NOWHERE = logging.NullHandler()
"""Without a handler Python prints each warning, amid the bars, beside the line that says it."""


class Display:
    """Shows the progress of `handles` while the block runs: a bar in a terminal, else a plain line now and then."""

    def __init__(self, handles: list[Handle], console: Terminal) -> None:
        self._console = console
        self._handles = handles
        self._waiting = [handle for handle in handles if not handle.finished]
        self._before = {handle.run.path: read(handle.run.progress_file) for handle in self._waiting}
        self._labels = _labels(self._waiting)
        self._bar = Progress(
            TextColumn("{task.description:<16}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[progress]}", markup=False),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._bars: dict[Path, TaskID] = {}
        self._done: set[Path] = set()
        self._line_at, self._estimated_at = -math.inf, -math.inf
        self._study: TaskID | None = None
        self._ended = threading.Event()
        self._lines = _Lines(self._print_line)
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Display:
        logging.getLogger("ratchet").addHandler(self._lines)
        logging.getLogger().addHandler(NOWHERE)
        self._bar.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._estimated_at = -math.inf  # the bar that stays says how far it came
        self._update()
        self._bar.stop()
        logging.getLogger("ratchet").removeHandler(self._lines)
        logging.getLogger().removeHandler(NOWHERE)

    def _watch(self) -> None:
        while not self._ended.wait(UPDATE_EVERY_SECONDS):
            self._update()

    def _update(self) -> None:
        for handle in self._waiting:
            now = read(handle.run.progress_file)
            if handle.run.path in self._done or now == self._before[handle.run.path]:
                continue  # not begun: what stands there is from an earlier attempt
            record = attempts.newest(handle.run.attempts) or {}
            if record.get("end_state") == "finished":
                self._finish(handle, (record["ended_at"] or record["started_at"]) - record["started_at"])
            elif record.get("end_state") is None:
                self._show(handle, now)
            elif handle.run.path in self._bars:
                self._bar.update(self._bars[handle.run.path], progress=far_of(now))
        if self._console.is_terminal and time.monotonic() - self._estimated_at > ESTIMATE_EVERY_SECONDS:
            self._estimated_at = time.monotonic()
            if self._study is None:
                self._study = self._bar.add_task("the whole study", total=len(self._handles), progress="")
            far = estimate(self._handles)
            self._bar.update(self._study, completed=far.finished, progress=far.words)

    def _show(self, handle: Handle, now: dict[str, Any]) -> None:
        path, label, progress = handle.run.path, self._labels[handle.run.path], described(now)
        if self._console.is_terminal:
            if path not in self._bars:
                self._bars[path] = self._bar.add_task(label, total=None, progress=progress)
            done, total = now.get("step", 0), now.get("total") or None
            self._bar.update(self._bars[path], total=total, completed=done, progress=progress)
        elif time.monotonic() - self._line_at > LINE_EVERY_SECONDS:
            self._line_at = time.monotonic()
            self._console.print(f"{label:<16} {progress} (study: {estimate(self._handles).words})")

    def _finish(self, handle: Handle, seconds: float) -> None:
        path = handle.run.path
        self._done.add(path)
        handle.check_marker()
        if path in self._bars:
            self._bar.remove_task(self._bars[path])
        self._console.print(f"{self._labels[path]:<16} finished in {duration(seconds)}")

    def _print_line(self, logger: str, process: int | None, text: str) -> None:
        """A line of the log, beside the stage that its process works on; between stages, beside its logger."""
        here = {key: locks.process_identity()[key] for key in ("boot_id", "pid_namespace")} | {"pid": process}
        records = ((handle.run.path, attempts.newest(handle.run.attempts) or {}) for handle in self._waiting)
        working = (
            path for path, record in records if record.get("end_state") is None and here.items() <= record.items()
        )
        label = next((self._labels[path] for path in working), logger.removeprefix("ratchet."))
        self._console.print(f"{label:<16} {text}")


class _Lines(logging.Handler):
    """Shows the few log lines that a person should see at once; an error is shown at the end, and the log has all."""

    def __init__(self, show: Callable[[str, int | None, str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.WARNING or hasattr(record, "for_the_terminal"):
            self._show(record.name, record.process, self.format(record))


def _labels(handles: list[Handle]) -> dict[Path, str]:
    """Name of each run: its label, and where that recurs, its run directory too."""
    names = [handle.label for handle in handles]
    return {
        handle.run.path: name if names.count(name) == 1 else f"{name} {handle.run.path.name}"
        for handle, name in zip(handles, names, strict=True)
    }
