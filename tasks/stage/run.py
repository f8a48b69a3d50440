"""What a stage is, and what its work is given: where to write, how to report, when to stop."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

from storage import attempts, durable, locks
from storage.checkpoints import Checkpoints
from storage.rows import RecordParts, Rows
from storage.run_directory import RunDirectory
from tasks.stage.configuration import Configuration
from tasks.stage.execution import Execution
from tasks.stage.outcome import diagnosed, said
from tasks.stage.progress import Progress, StopRequest
from tasks.stage.watchdog import ended_when_stalled


@dataclass(frozen=True)
class Stage:
    """A node of the DAG.

    `work` is `module:function`, imported only when the stage runs, so that the page can be walked without torch.
    `version` is raised when a change of the source changes results.
    """

    name: str
    config: type[Configuration]
    work: str
    version: int = 1

    def function(self) -> Callable[..., dict[str, Any]]:
        module, _, name = self.work.partition(":")
        return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class StageInput:
    """A finished stage as another one reads it."""

    run: RunDirectory
    outputs_digest: str

    @property
    def path(self) -> Path:
        return self.run.path

    @cached_property
    def result(self) -> dict[str, Any]:
        return durable.read_json(self.run.result_file)


class StageRun:
    """What the work of a stage is given: where to write, how to report, when to stop."""

    def __init__(
        self,
        run: RunDirectory,
        identity: dict[str, Any],
        lock: locks.Lock,
        cache: Path,
        configuration: dict[str, Any] | None = None,
    ) -> None:
        self.run, self.lock, self.identity, self.cache = run, lock, identity, cache
        self.configuration = configuration or {}
        self.record: attempts.AttemptRecord | None = None
        self.directory = run.path
        self.log = logging.getLogger(f"ratchet.{run.stage}")
        self.stop = StopRequest()
        self.progress = Progress(run.progress_file, self.log)
        self.outputs = ["stage.json", "result.json"]

    @contextmanager
    def publish(self, name: str) -> Iterator[Path]:
        """A folder to fill, which becomes the output folder `name` by one durable rename."""
        self.lock.check()
        with durable.new_directory(self.directory / name) as folder:
            yield folder
            self.lock.check()
        self.outputs.append(name)

    @contextmanager
    def publish_file(self, name: str) -> Iterator[Path]:
        """A file to write, which becomes the output `name` by one durable rename."""
        self.lock.check()
        with durable.new_file(self.directory / name) as file:
            yield file
            self.lock.check()
        self.outputs.append(name)

    @cached_property
    def metrics(self) -> Rows:
        self.outputs.append("metrics.jsonl")
        return Rows(self.run.metrics_file, self.lock)

    @cached_property
    def timing(self) -> Rows:
        return Rows(self.run.timing_file, positions=False)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.run.checkpoints, self.identity, self.lock, self.configuration)

    @cached_property
    def records(self) -> RecordParts:
        return RecordParts(self.directory / "records", self.identity, self.lock)

    def reached(self) -> list[int]:
        """How far the stage is on disk: the furthest checkpoint's step, and the number of record parts."""
        return [self.checkpoints.furthest(), self.records.count()]

    def note(self, **facts: Any) -> None:
        """Keeps facts in the attempt's record; best effort, since nothing depends on them."""
        if self.record is not None:
            with suppress(OSError):
                self.record.note(**facts)

    @contextmanager
    def watched(self, minutes: float) -> Iterator[None]:
        """Ends this process, with a diagnosis, when no step is reported for `minutes` while the block runs."""

        def say(seconds: float) -> TextIO:
            summary = f"no step for {seconds / 60:.3g} minutes (execution.stall_minutes is {minutes:g})"
            advice = "The log shows where every thread stood. Look at the disk and the GPU; the same command goes on."
            outcome = diagnosed("crashed", "stalled", summary, advice)
            self.log.error("%s: %s", said(outcome.end_state), outcome.told)
            if self.record is None:
                return sys.stderr
            self.record.end(outcome.end_state, outcome.exit_code, outcome.diagnosis)
            return self.record.log_file.open("a")

        with ended_when_stalled(lambda: self.progress.last_step_at, 60 * minutes, say):
            yield


def cache_folder(root: Path, settings: Execution) -> Path:
    """Where extracted text and downloads are kept: never the home folder."""
    return Path(settings.cache_folder).expanduser() if settings.cache_folder else root / ".cache"
