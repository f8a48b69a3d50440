"""Stages, and the run that the work of a stage gets: to write to, to report by, and to be stopped by."""

from __future__ import annotations

import importlib
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO, TypeVar, get_args

from pydantic import ValidationError

from storage import attempts, durable, locks
from storage.checkpoints import Checkpoints
from storage.errors import BadInput, require_equal
from storage.rows import Position, Rows
from storage.run_directory import LATEST, SCRATCH, RunDirectory, fingerprint
from tasks.stage.command import run_command
from tasks.stage.execution import Execution
from tasks.stage.outcome import diagnosed, in_words
from tasks.stage.progress import Progress, StopRequest, ended_when_stalled
from tasks.stage.result import Result
from tasks.stage.study import StageConfiguration
from tasks.stage.validation import said

if TYPE_CHECKING:  # takes pyarrow, which a page's walk does without
    from storage.records import RecordParts
    from tasks.stage.loops import Loops

Part = TypeVar("Part")
Item = TypeVar("Item")
Config = TypeVar("Config", bound=StageConfiguration)
Needs = Literal["training", "gpu", "cpu"]
"""Kinds of resources: `prefect.yaml` has the requests of their jobs, the site file what differs on one cluster."""


@dataclass(frozen=True)
class Stage:
    """A node of the DAG. Raises BadInput for a wrong description.

    `work` is `module:function`, imported only when the stage runs, so that the page can be walked without torch.
    `version` is raised when a change of the source changes results. `needs` are the resources of its SLURM jobs.
    """

    name: str
    config: type[StageConfiguration]
    work: str
    version: int = 1
    needs: Needs = "training"

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", self.name):
            raise BadInput(f"a stage is called {self.name!r}: use small letters, digits and single -, such as my-train")
        if self.name == LATEST:
            raise BadInput(f"a stage is called {self.name!r}, as the link to the newest result is: rename it")
        if not (isinstance(self.config, type) and issubclass(self.config, StageConfiguration)):
            raise BadInput(
                f"stage {self.name}: its configuration {self.config!r} is not a class made from "
                "tasks.stage.study.StageConfiguration"
            )
        if not re.fullmatch(r"[\w.]+:\w+", self.work):
            raise BadInput(f"stage {self.name}: work {self.work!r} is not module:function, such as my_study_work:train")
        if self.needs not in get_args(Needs):
            raise BadInput(f"stage {self.name}: needs {self.needs!r} is none of {', '.join(get_args(Needs))}")

    @property
    def deployment(self) -> str:
        """The name of the Prefect deployment that starts its jobs: `stage` is the flow, as in flows/stage.py."""
        return f"stage/{self.needs}"

    def function(self) -> Callable[..., Result | dict[str, Any]]:
        """The function that does the work and returns the content of `result.json`."""
        module, _, name = self.work.partition(":")
        return getattr(importlib.import_module(module), name)


@dataclass(frozen=True)
class StageInput:
    """A finished stage that another one reads."""

    run: RunDirectory
    outputs_digest: str

    @property
    def path(self) -> Path:
        return self.run.path

    @cached_property
    def result(self) -> dict[str, Any]:
        """The content of `result.json`; `Result.read` returns it as the type that the stage returned."""
        return durable.read_json(self.run.result_file)

    def configuration(self, kind: type[Config]) -> Config:
        """The configuration in `stage.json`. CheckFailed where it is not the one that the run directory is named by."""
        described = durable.read_json(self.run.stage_file)
        try:
            config = kind.model_validate(described["configuration"])
        except ValidationError as error:
            raise BadInput(
                f"{self.run.stage_file} is of another version of Ratchet: {said(error.errors()[0])}"
            ) from None
        inputs = {role: source["fingerprint"] for role, source in described["inputs"].items()}
        fields = (described["stage"], described["version"], config.scientific(), described["external"], inputs)
        check = f"the configuration in {self.run.stage_file} is the one that the stage was given"
        require_equal(check, f"fingerprint {fingerprint(*fields)}", f"fingerprint {self.run.fingerprint}")
        return config

    @property
    def numerics_changes(self) -> list[dict[str, Any]]:
        """The numerics of later attempts that differed from those of the first; usually none."""
        return self.result.get("numerics_changes", [])


class StageRun:
    """The run that the work of a stage gets: to write to, to report by, and to be stopped by."""

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
        self.execution = Execution()
        """How the study says that the work is done; an attempt sets it."""
        self.record: attempts.AttemptRecord | None = None
        self.directory = run.path
        self.log = logging.getLogger(f"ratchet.{run.stage}")
        self.stop = StopRequest()
        self.progress = Progress(run.progress_file, self.log)
        self.outputs = ["stage.json", "result.json"]
        self._saved_at: int | None = None
        self._trained = False
        self._went_on: dict[str, str] = {}

    @contextmanager
    def publish(self, name: str) -> Iterator[Path]:
        """Yields a folder to fill, which becomes the output folder `name` by one durable rename."""
        self.lock.check()
        with durable.new_directory(self.directory / name) as folder:
            yield folder
            self.lock.check()
        self.outputs.append(name)

    @contextmanager
    def publish_file(self, name: str) -> Iterator[Path]:
        """Yields a file to write, which becomes the output `name` by one durable rename."""
        self.lock.check()
        with durable.new_file(self.directory / name) as file:
            yield file
            self.lock.check()
        self.outputs.append(name)

    @cached_property
    def metrics(self) -> Rows:
        self.outputs.append("metrics.jsonl")
        rows = Rows(self.run.metrics_file, self.lock)
        if self.run.metrics_file.exists() and not any(self.reached()):
            rows.cut_back(None)  # of an attempt that kept nothing else
        return rows

    @cached_property
    def timing(self) -> Rows:
        return Rows(self.run.timing_file, positions=False)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.run.checkpoints, self.identity, self.lock, self.configuration)

    @cached_property
    def records(self) -> RecordParts:
        from storage.records import RecordParts

        return RecordParts(self.directory / "records", self.identity, self.lock)

    def step(self, done: int, total: int, unit: str, note: str = "") -> None:
        """Between two steps of work: `done` of `total` `unit`s are. Raises Stop where one was asked for."""
        self.lock.check()
        self.stop.check()
        self.progress.update(done, total, unit, note)

    def each(
        self,
        parts: Mapping[str, Part] | Sequence[Part],
        make: Callable[[Part], Iterable[dict[str, Any]]],
        unit: str,
        note: str | Callable[[Part], str] = "",
        prefix: str = "",
        before: int = 0,
        total: int = 0,
    ) -> list[str]:
        """Writes the records that `make` returns for each missing part; returns the keys of all parts.

        Parts without keys are numbered, after `prefix`. A continuation loses at most one part. Earlier calls did
        `before` parts of a `total`.
        """
        if not isinstance(parts, Mapping):
            parts = {f"{prefix}{number:05d}": part for number, part in enumerate(parts)}
        total = total or len(parts)
        for number, (key, part) in enumerate(parts.items(), before):
            self.progress.update(number, total, unit, note if isinstance(note, str) else note(part))
            if not self.records.has(key):
                self.stop.check()
                self.records.write(key, make(part))
        self.progress.update(before + len(parts), total, unit, note if isinstance(note, str) else "")
        return list(parts)

    def merge_records(self, keys: Sequence[str], key_columns: Sequence[str]) -> None:
        """Publishes the parts as `records.parquet`, in which each row has a key of its own."""
        with self.publish_file("records.parquet") as file:
            self.records.merge(keys, file, key_columns)

    def resume(self, items: Iterable[Item], unit: str = "items", name: str = "") -> Iterator[Item]:
        """Yields those of `items` that are not done yet; what `row` is told of one is durable when the next begins.

        A kill costs one item. Before each the generators of random numbers are set by the stage's configuration and the
        item, so that it draws the same whatever was done before it in this process. `name` tells loops over equal items
        apart. A loop that goes on computes up to ten items again in a fresh process, where that takes no more than a
        minute or a tenth of the loop. CheckFailed where an item depends on those before it; BadInput for a generator
        that was made before the loop and draws in it, for an item without rows, for a loop within a loop, or one that
        is left before its end, and for other items than an earlier attempt had in the same place.
        """
        return self.loops.resume(items, unit, name)

    def row(self, **row: Any) -> None:
        """A row of what came out of the item that `resume` gave: numbers, text, lists of them, each of one kind; a name
        that other rows have and this one has not is None."""
        self.loops.row(row)

    def rows(self) -> list[dict[str, Any]]:
        """All rows of all items, in their order; they are the output `records.parquet` too."""
        return self.loops.rows()

    @cached_property
    def loops(self) -> Loops:
        from tasks.stage.loops import Loops

        return Loops(self)

    def end_loops(self, result: dict[str, Any]) -> None:
        """After the work: see `Loops.end`."""
        if "loops" in vars(self):
            self.loops.end(result)

    def went_on(self, way: str, not_shown: str = "") -> None:
        """Notes that this attempt goes on with work of one before, and why nothing shows that its bytes are those of an
        undisturbed one; empty where tests do, or a comparison."""
        self._went_on[way] = not_shown
        self.note(went_on=self._went_on)

    def save(self, step: int, /, **values: Any) -> None:
        """Keeps what a loop of one's own needs to go on after `step`, with all generators; then heeds a stop request.

        `step` rises with each save. Values are numbers, text, tensors, arrays, generators of NumPy and torch, and
        lists, tuples and dictionaries of them, such as a `state_dict()`. Those that would come back as something else
        are refused. The generators of Python, NumPy and torch that everybody draws from need not be given.
        """
        from tasks.stage.saved import packed

        if self._saved_at is None:
            raise BadInput("run.save before run.saved: take what the loop goes on from by state = run.saved(...) first")
        if type(step) is not int or step <= self._saved_at:
            after = f"the last one's is {self._saved_at}" if self._saved_at >= 0 else "the first one's is 0 or more"
            raise BadInput(
                f"run.save: its step is {step!r}, and {after}: give a whole number (int) that rises from save to save "
                "and goes on after a kill, such as epoch + 1"
            )
        if (drew := self._bound.changed(values)) and self._went_on.get("run.saved") == "":
            self.went_on("run.saved", f"{drew} draws, and is not given to run.save")
        groups, state = packed(values)
        if "metrics" in vars(self):
            self.metrics.sync()
        position = self.metrics.position() if "metrics" in vars(self) else None
        self.checkpoints.save(step, groups, state | {"metrics": position})
        self._saved_at = step
        self.checkpoints.prune(keep=2)
        self.stop.check()

    def saved(self, **first: Any) -> dict[str, Any]:
        """The values of the newest `save` that verifies, else `first`. Tensors are on the CPU, generators as then.

        Once in a stage, before its loop: BadInput for a second call, or one beside a training.
        """
        from tasks.stage.bound import BoundGenerators, frames
        from tasks.stage.saved import unpacked

        self.begin_training()
        self._bound = BoundGenerators(frames())
        newest = self.checkpoints.newest_verified()
        self._saved_at = -1 if newest is None else newest.step
        if newest is None:
            return first
        before = "metrics.jsonl is of an earlier version, and may have rows twice"
        if is_known := not self.run.metrics_file.exists() or "metrics" in newest.state:
            self.cut_back_metrics(newest.state.get("metrics"))
        self.went_on("run.saved", before * (not is_known))
        return unpacked(newest)

    def cut_back_metrics(self, position: Position | None) -> None:
        """Cuts the rows back to where a checkpoint was made, or to the end of what loops over items kept after it."""
        ends = [end for end in (position, self.loops.position() if self.records.count() else None) if end]
        if ends or self.run.metrics_file.exists():
            self.metrics.cut_back(max(ends, key=lambda end: end["length"], default=None))

    @property
    def scratch(self) -> Path:
        """A folder for code of others. It stays between attempts, is no output, and `ratchet prune` removes it."""
        (folder := self.directory / SCRATCH).mkdir(exist_ok=True)
        return folder

    def command(
        self,
        *command: object,
        checkpoints: str = "",
        resume: Sequence[str] = (),
        leaves: Sequence[str] = (),
        progress: str = "",
        save_seconds: float = 60.0,
    ) -> dict[str, float]:
        """Runs a command in `scratch` to its end: its words, where `python` is this Python.

        `checkpoints` is a pattern of what it writes there to go on from, such as `checkpoint-*` or `last.pt`. With the
        newest that is whole, `resume` is added to the words, {checkpoint} in it replaced. A request to stop becomes a
        SIGTERM to all its processes, which have `save_seconds` to end. `leaves` are files or folders that must be in
        `scratch` when it ends with 0, and become outputs. `progress` is a pattern of a line that it prints: its first
        group is the steps done, a second one those in all. What it prints stands in the attempt's log. Returns the
        numbers of the last such line by their names, but for those of a clock: {"step": 300, "loss": 0.25}.
        """
        return run_command(
            self, command, checkpoints=checkpoints, resume=resume, leaves=leaves, progress=progress,
            save_seconds=save_seconds,
        )  # fmt: skip

    def begin_training(self) -> None:
        """BadInput for a second training, or script with checkpoints: it would go on from those of the first."""
        if self._trained:
            raise BadInput(
                "a second training, or run.saved, would go on from the checkpoints of the first. A stage has one: make "
                "each a stage of its own"
            )
        self._trained = True

    def reached(self) -> list[int]:
        """The progress of the stage on disk: the steps made up to a checkpoint, and the number of record parts."""
        return [self.checkpoints.progress(), self.records.count()]

    @property
    def numerics_changes(self) -> list[dict[str, Any]]:
        """The changes of numerics so far, which stage.json holds."""
        return durable.read_json(self.run.stage_file)["numerics_changes"] if self.run.stage_file.exists() else []

    def change_numerics(self, change: dict[str, Any]) -> None:
        """Adds a change of numerics to stage.json; on return it is durable."""
        self.lock.check()
        changes = [*self.numerics_changes, change]
        durable.write_json(self.run.stage_file, durable.read_json(self.run.stage_file) | {"numerics_changes": changes})

    def note(self, **facts: Any) -> None:
        """Adds facts to the attempt's record; best effort, since nothing depends on them."""
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
            self.log.error("%s: %s", in_words(outcome.end_state), outcome.text)
            if self.record is None:
                return sys.stderr
            outcome.write_to(self.record)
            return self.record.log_file.open("a")

        with ended_when_stalled(lambda: self.progress.last_step_at, 60 * minutes, say):
            yield


def cache_folder(root: Path, settings: Execution) -> Path:
    """The folder of extracted text and downloads: never the home folder."""
    return Path(settings.cache_folder).expanduser() if settings.cache_folder else root / ".cache"
