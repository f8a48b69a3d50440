"""Measurements of trainings as TensorBoard's event files: a folder for each run directory, by its name.

They are made from `metrics.jsonl` and `timing.jsonl` alone: a training, its records and its job know nothing of them.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deployments.views.curves import TRAINING, VALIDATION, trivial_of
from storage.errors import BadInput, install
from storage.inside import inside
from storage.rows import read_rows, rows_of
from storage.run_directory import find_runs

Row = dict[str, Any]


class TensorBoard:
    """What its files hold of all runs below a root that have measured something: no point ever stands there twice."""

    def __init__(self, root: Path, target: Path | None = None) -> None:
        """`target` defaults to a folder below the root, where no study can have its name.

        BadInput where TensorBoard is not installed, or where there are no runs.
        """
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise BadInput(
                f"TensorBoard is not installed here, which this command writes for: {install('tensorboard')}"
            ) from None
        if not find_runs(root):
            raise BadInput(f"there are no runs below {root}: give the folder of the run directories")
        self._root, self._target, self._writer = root, target or root / ".tensorboard", SummaryWriter
        if self._target.is_relative_to(root):
            with suppress(FileNotFoundError):
                inside(root, self._target.relative_to(root).as_posix(), folder=True)
        self._written: dict[Path, _Run] = {}
        self.damaged: dict[Path, int] = {}
        """File of rows -> lines in it that cannot be read, and so stand nowhere."""
        self.command = f"tensorboard --logdir {shlex.quote(str(self._target))}"
        """What a person types to see them."""

    def update(self) -> int:
        """Writes what was measured since the last time. Returns the number of runs that have measured something."""
        for path in find_runs(self._root):
            file = path / "metrics.jsonl"
            rows, damaged = read_rows(file)
            self.damaged |= {file: damaged} if damaged else {}
            known = self._written.get(path)
            if known and known.rows == rows[: len(known.rows)]:
                new = rows[len(known.rows) :]
            elif known and known.rows[: len(rows)] == rows:
                new = []  # cut back to a checkpoint after a kill: the same rows come again
            elif rows:
                known, new = self._anew(path), rows
            if known and new:
                try:
                    known.add(new)
                except (TypeError, ValueError, ArithmeticError):  # anybody may have written them
                    self.damaged[file] = len(new)
        return len(self._written)

    def close(self) -> None:
        for run in self._written.values():
            run.events.close()

    def _anew(self, path: Path) -> _Run:
        if before := self._written.pop(path, None):
            before.events.close()
        folder = self._target / path.relative_to(self._root)
        named = self._root if self._target.is_relative_to(self._root) else self._target  # by a person
        with suppress(FileNotFoundError):
            inside(named, folder.relative_to(named).as_posix(), folder=True)
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._written[path] = _Run(path, self._writer(str(folder)))
        return self._written[path]


@dataclass
class _Run:
    """The rows of a run that stand in its event file."""

    path: Path
    events: Any
    rows: list[Row] = field(default_factory=list)

    def add(self, rows: list[Row]) -> None:
        times = {row["step"]: row["at"] for row in rows_of(self.path / "timing.jsonl") if "at" in row}
        for row in rows:
            for tag, value in scalars(row).items():  # without a time that of its writing
                self.events.add_scalar(tag, value, row["step"], walltime=times.get(row["step"]))
        self.events.flush()
        self.rows += rows


def scalars(row: Row) -> dict[str, float]:
    """The numbers of a row by their tags: what is of one metric has one beginning, and so stands together."""
    numbers = {_tag(name): value for name, value in row.items() if name != "step" and type(value) in (int, float)}
    for name in row:
        for what, value in trivial_of(row, name).items():
            numbers[f"{name.removeprefix(VALIDATION)}/without learning, {what}"] = value
    return numbers


def _tag(name: str) -> str:
    """`loss/training` and `loss/validation` for a metric, `training/learning_rate` for what else a training says."""
    if name == TRAINING:
        return "loss/training"
    if name.startswith(VALIDATION):
        return f"{name.removeprefix(VALIDATION)}/validation"
    return f"training/{name}"
