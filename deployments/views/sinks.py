"""Measurements of trainings for TensorBoard, MLflow or Weights & Biases: a run there for each run directory.

They are made from `metrics.jsonl` and `timing.jsonl` alone: a training, its records and its job know nothing of them.
"""

from __future__ import annotations

import re
import shlex
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from deployments.views.curves import TRAINING, VALIDATION, trivial_of
from storage.errors import BadInput, install
from storage.inside import Name, inside
from storage.rows import read_rows, rows_of
from storage.run_directory import find_runs, read

Row = dict[str, Any]
SEARCHED = 50_000
"""As many runs as MLflow gives at once."""


class Writer(Protocol):
    """Takes the numbers of one run; what the sink held of that run before is replaced when it is made."""

    def add(self, step: int, values: dict[str, float], at: float | None) -> None:
        """`at`: seconds since 1970, where it is known."""

    def flush(self) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """An event file for each run, in a folder that has its name."""

    module = "torch.utils.tensorboard"
    command = "tensorboard --logdir {}"

    def __init__(self, target: Path, root: Path, path: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder = target / path.relative_to(root)
        named = root if target.is_relative_to(root) else target  # by a person
        with suppress(FileNotFoundError):
            inside(named, folder.relative_to(named).as_posix(), folder=True)
        for file in folder.glob("events.out.tfevents.*"):
            file.unlink()
        self._events = SummaryWriter(str(folder))
        self.flush, self.close = self._events.flush, self._events.close

    def add(self, step: int, values: dict[str, float], at: float | None) -> None:
        for tag, value in values.items():
            self._events.add_scalar(tag, value, step, walltime=at)  # without a time that of its writing


class MLflow:
    """A run of the experiment that has the study's name, with the stage's settings, in a SQLite file of the target."""

    module = "mlflow"
    command = "mlflow server --backend-store-uri sqlite:///{}/mlflow.db"

    def __init__(self, target: Path, root: Path, path: Path) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric: Any = Metric
        study, name = path.relative_to(root).parts[0], path.relative_to(root).as_posix()
        target.mkdir(parents=True, exist_ok=True)
        self._client = MlflowClient(f"sqlite:///{target.resolve()}/mlflow.db")
        known = self._client.get_experiment_by_name(study)
        number = known.experiment_id if known else self._client.create_experiment(study, str(target / "artifacts"))
        for old in self._client.search_runs([number], max_results=SEARCHED):  # a filter would be made of the name
            if old.info.run_name == name:
                self._client.delete_run(old.info.run_id)
        self._run = self._client.create_run(number, run_name=name).info.run_id
        params = [Param(key, str(value)) for key, value in settings(path).items()]
        self._client.log_batch(self._run, params=params)

    def add(self, step: int, values: dict[str, float], at: float | None) -> None:
        written = [
            self._metric(re.sub(r"[^\w. /-]", "", tag), value, int(1000 * (at or 0)), step)
            for tag, value in values.items()
        ]
        self._client.log_batch(self._run, written)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WandB:
    """An offline run for each run, of the project that has the study's name; `wandb sync` sends it, and only that."""

    module = "wandb"
    command = "wandb sync --sync-all  # in {}: sends them to your account"

    def __init__(self, target: Path, root: Path, path: Path) -> None:
        import wandb

        place = path.relative_to(root)
        name = "-".join(place.parts)
        for old in target.glob(f"wandb/offline-run-*-{Name(name).pattern}"):
            if old.name.split("-", 3)[3] == name:  # else of a study whose name ends so
                shutil.rmtree(Name(f"wandb/{old.name}").path(target, is_folder=True))
        target.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(
            silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True
        )
        self._run = wandb.init(
            mode="offline", dir=str(target), project=place.parts[0], id=name, name=place.as_posix(),
            config=settings(path), reinit="create_new", settings=quiet,
        )  # fmt: skip

    def add(self, step: int, values: dict[str, float], at: float | None) -> None:
        self._run.log(values | ({"at": at} if at else {}), step=step)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._run.finish()


SINKS: dict[str, Any] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


class Sink:
    """What a sink holds of all runs below a root that have measured something: no point ever stands there twice."""

    def __init__(self, name: str, root: Path, target: Path | None = None) -> None:
        """`target` defaults to a folder below the root, where no study can have its name.

        BadInput where the sink's library is not installed, or where there are no runs.
        """
        self.open, self.target = SINKS[name], target or root / f".{name}"
        try:
            import_module(self.open.module)
        except ImportError:
            raise BadInput(
                f"{self.open.__name__} is not installed here, which this command writes for: {install(name)}"
            ) from None
        if not find_runs(root):
            raise BadInput(f"there are no runs below {root}: give the folder of the run directories")
        if self.target.is_relative_to(root):
            with suppress(FileNotFoundError):
                inside(root, self.target.relative_to(root).as_posix(), folder=True)
        self._root = root
        self._written: dict[Path, _Run] = {}
        self.damaged: dict[Path, int] = {}
        """File of rows -> lines in it that cannot be read, and so stand nowhere."""
        self.command = self.open.command.format(shlex.quote(str(self.target)))
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
            run.writer.close()

    def _anew(self, path: Path) -> _Run:
        if before := self._written.pop(path, None):
            before.writer.close()
        self._written[path] = _Run(path, self.open(self.target, self._root, path))
        return self._written[path]


@dataclass
class _Run:
    """The rows of a run that stand in the sink."""

    path: Path
    writer: Writer
    rows: list[Row] = field(default_factory=list)

    def add(self, rows: list[Row]) -> None:
        times = {row["step"]: row["at"] for row in rows_of(self.path / "timing.jsonl") if "at" in row}
        for row in rows:
            if values := scalars(row):
                self.writer.add(row["step"], values, times.get(row["step"]))
        self.writer.flush()
        self.rows += rows


def settings(path: Path) -> dict[str, Any]:
    """The stage's settings by dotted key, from its stage.json."""
    flat: dict[str, Any] = {}
    rest = [("", read(path / "stage.json").get("configuration") or {})]
    for prefix, group in rest:
        for key, value in group.items():
            if isinstance(value, dict):
                rest.append((f"{prefix}{key}.", value))
            else:
                flat[prefix + key] = value
    return flat


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
