"""`ratchet.open("runs")["digits"].table()`: what is finished below a root, for a notebook."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deployments.views.listing import ListedStudy, read_root, standing
from storage import durable
from storage.errors import BadInput, did_you_mean
from storage.lineage import leaves
from storage.rows import rows_of
from storage.run_directory import RunDirectory, find_runs, run_in
from tasks.stage.result import NOTED_BY_THE_FRAME

if TYPE_CHECKING:
    from pandas import DataFrame  # type: ignore[import-untyped]


@dataclass(frozen=True)
class OpenedRun:
    """A finished stage."""

    run: RunDirectory

    @property
    def path(self) -> Path:
        return self.run.path

    @cached_property
    def result(self) -> dict[str, Any]:
        """What the stage returned."""
        return {k: v for k, v in durable.read_json(self.run.result_file).items() if k not in NOTED_BY_THE_FRAME}

    @cached_property
    def configuration(self) -> dict[str, Any]:
        values = durable.read_json(self.run.stage_file)["configuration"]
        return {name: value for name, value in leaves(values) if not name.startswith("execution")}

    def metrics(self) -> DataFrame:
        """The rows of `metrics.jsonl`; empty without any."""
        return _frame(rows_of(self.run.metrics_file))


@dataclass(frozen=True)
class OpenedStudy:
    """A study below a root."""

    listed: ListedStudy
    root: Path

    @property
    def answer(self) -> str:
        """The headline of its newest result; empty where it has none."""
        return next((result.headline for result in reversed(self.listed.results) if result.headline), "")

    @cached_property
    def runs(self) -> list[OpenedRun]:
        """Its finished stages."""
        runs = [run_in(path) for path in find_runs(self.root) if path.parts[-3] == self.listed.name]
        return [OpenedRun(run) for run in runs if standing(run)[0] == "finished"]

    def run(self, name: str) -> OpenedRun:
        """The finished stage of this name or run directory. BadInput where there is none, or several."""
        named = [run_ for run_ in self.runs if name in (run_.run.stage, run_.path.name)]
        if len(named) != 1:
            names = ", ".join(f"{run_.run.stage} {run_.path.name}" for run_ in named or self.runs)
            hint = "name a run: " if named else did_you_mean(name, [run_.run.stage for run_ in self.runs])
            raise BadInput(f"{self.listed.name} has {len(named) or 'no'} finished {name!r}; {hint}there are {names}")
        return named[0]

    def table(self) -> DataFrame:
        """A row for each finished stage that returned numbers: its name, run, the settings that vary within stages of
        its name, and every number by dotted name."""
        rows = []
        for run_ in self.runs:
            alike = [other.configuration for other in self.runs if other.run.stage == run_.run.stage]
            varied = {
                name: value
                for name, value in run_.configuration.items()
                if any(other.get(name) != value for other in alike)
            }
            numbers = {
                name: value
                for name, value in leaves(run_.result)
                if isinstance(value, int | float) and not isinstance(value, bool)
            }
            rows += [{"stage": run_.run.stage, "run": run_.path.name, **varied, **numbers}] if numbers else []
        return _frame(rows)


class OpenedRoot(dict[str, OpenedStudy]):
    """Studies by name. BadInput for a name that none has."""

    def __missing__(self, name: str) -> OpenedStudy:
        raise BadInput(f"there is no study {name!r}; {did_you_mean(name, self)}there are {', '.join(self)}")


def opened(root: str | Path = "runs") -> OpenedRoot:
    """Each study below `root`, by its name. BadInput where there is none."""
    folder = Path(root).expanduser().absolute()
    return OpenedRoot({study.name: OpenedStudy(study, folder) for study in read_root(folder)})


def _frame(rows: list[dict[str, Any]]) -> DataFrame:
    from pandas import DataFrame  # takes long

    def whole(name: str) -> bool:
        return all(type(value := row.get(name, 0)) is int and abs(value) < 2**53 for row in rows)

    frame = DataFrame(rows)  # its columns with gaps are floats, and a fold is 4, not 4.0
    gaps = [name for name in frame if frame[name].dtype.kind == "f" and whole(name)]
    return frame.astype(dict.fromkeys(gaps, "Int64"))
