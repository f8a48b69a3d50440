"""Which run of a study read which, from what each of them wrote down before it began to work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from storage.run_directory import RunDirectory, read
from tasks.stage.run import StageInput, StageRun


@dataclass(frozen=True)
class Node:
    """One run: its stage, what tells it from others of the stage, where it lies, and the runs that it read, by name."""

    stage: str
    cell: str
    path: Path
    inputs: tuple[str, ...]
    note: str = ""
    """What is known beside, such as how long it took."""
    runs: int = 1
    """More where it stands for several."""
    numerics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.stage} ({self.cell})" if self.cell else self.stage

    @property
    def lines(self) -> list[str]:
        of = f"{self.runs} runs" if self.runs > 1 else self.path.name
        return [self.stage, *filter(None, [self.cell]), " · ".join(filter(None, [of, self.note]))]


@dataclass
class Dag:
    """Name of each run -> its node, those that are read before those that read them."""

    nodes: dict[str, Node] = field(default_factory=dict)

    @classmethod
    def of(cls, run: StageRun, stages: Iterable[StageInput]) -> Dag:
        """The runs that `stages` are and that they were made from, and last this one, which reads `stages`."""
        dag, last = cls(), tuple(dict.fromkeys(given.path.name for given in stages))
        for given in stages:
            dag._add(given.run)
        dag.nodes[run.directory.name] = Node(run.directory.parent.name, "", run.directory, last)
        return dag

    def _add(self, run: RunDirectory) -> None:
        if run.path.name in self.nodes:
            return
        described = read(run.stage_file)
        inputs = run.reads(described.get("inputs", {})).values()
        for given in inputs:
            self._add(given)
        self.nodes[run.path.name] = Node(
            run.stage,
            described.get("configuration", {}).get("cell", ""),
            run.path,
            tuple(given.path.name for given in inputs),
            numerics=described.get("numerics", {}),
        )

    def noted(self, notes: Mapping[str, str]) -> Dag:
        """The same with a note in each box, by the name of the run."""
        return Dag({name: replace(node, note=notes.get(name, "")) for name, node in self.nodes.items()})
