"""The runs of a study and what each of them read, as it wrote down before it began to work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from storage.run_directory import RunDirectory, read
from tasks.stage.run import StageInput, StageRun


@dataclass(frozen=True)
class Node:
    """A run: its stage, what tells it from others of the stage, where it lies, and the runs that it read, by name."""

    stage: str
    cell: str
    path: Path
    inputs: tuple[str, ...]
    numerics: Mapping[str, JsonValue] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.stage} ({self.cell})" if self.cell else self.stage


@dataclass
class Dag:
    """Name of each run -> its node, those that are read before those that read them."""

    nodes: dict[str, Node] = field(default_factory=dict)

    @classmethod
    def of(cls, run: StageRun, stages: Iterable[StageInput]) -> Dag:
        """The runs of `stages`, all that they were made from, and last this run, which reads `stages`."""
        dag, inputs = cls(), tuple(dict.fromkeys(stage.path.name for stage in stages))
        for stage in stages:
            dag._add(stage.run)
        dag.nodes[run.directory.name] = Node(run.directory.parent.name, "", run.directory, inputs)
        return dag

    def _add(self, run: RunDirectory) -> None:
        if run.path.name in self.nodes:
            return
        stage = read(run.stage_file)
        inputs = run.reads(stage.get("inputs", {})).values()
        for source in inputs:
            self._add(source)
        self.nodes[run.path.name] = Node(
            run.stage,
            stage.get("configuration", {}).get("cell", ""),
            run.path,
            tuple(source.path.name for source in inputs),
            numerics=stage.get("numerics", {}),
        )
