"""What determines a run's result: what it was configured with, what it read from outside, and all that it reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage import durable
from storage.differences import ABSENT, leaves
from storage.errors import BadInput
from storage.run_directory import RunDirectory


@dataclass(frozen=True)
class Lineage:
    """A run by what its fingerprint is made of.

    `scientific` are its scientific fields by dotted name, `others` its stage's version and what it read from outside.
    Both are empty, and `known` is False, where its stage.json is lost.
    """

    run: RunDirectory
    scientific: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Lineage] = field(default_factory=dict)
    known: bool = True

    @classmethod
    def of(
        cls, run: RunDirectory, version: int, scientific: Any, external: Any, inputs: Mapping[str, Lineage]
    ) -> Lineage:
        """Of what `storage.run_directory.fingerprint` is given."""
        others = {"version": version, **dict(leaves({"external": external} if external else {}))}
        return cls(run, dict(leaves(scientific)), others, inputs)

    def runs(self) -> set[RunDirectory]:
        """The run and all that it reads."""
        found, waiting = set[RunDirectory](), [self]
        while waiting:
            one = waiting.pop()
            if one.run not in found:
                found.add(one.run)
                waiting += one.inputs.values()
        return found


@dataclass(frozen=True)
class Difference:
    """A field in which two lineages differ, and the stages that it differs in, those nearest to the result first."""

    name: str
    there: Any
    here: Any
    stages: tuple[str, ...]


class Lineages:
    """Reads lineages from run directories, each stage.json once: for the length of one answer."""

    def __init__(self) -> None:
        self._read: dict[RunDirectory, Lineage] = {}
        self._values: dict[RunDirectory, dict[str, set[str]]] = {}

    def of(self, run: RunDirectory) -> Lineage:
        """The lineage of a run. What it read may have been removed since."""
        if run not in self._read:
            self._read[run] = Lineage(run, known=False)  # also for one that was edited to read itself
            try:
                self._read[run] = self._described(run)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, BadInput):
                pass
        return self._read[run]

    def _described(self, run: RunDirectory) -> Lineage:
        about = durable.read_json(run.stage_file)
        inputs = {role: self.of(given) for role, given in run.reads(about["inputs"]).items()}
        return Lineage.of(run, about["version"], about["scientific"], about["external"], inputs)

    def values(self, lineage: Lineage) -> dict[str, set[str]]:
        """Every scientific field of a run and of all that it reads -> its values there, as text; its own first."""
        known = self._values.get(lineage.run)
        if known is None:
            known = {name: {str(value)} for name, value in lineage.scientific.items()}
            for given in lineage.inputs.values():
                for name, values in self.values(given).items():
                    known[name] = known.get(name, set()) | values
            self._values[lineage.run] = known
        return known


def differing(there: Lineage, here: Lineage) -> list[Difference]:
    """What differs between two lineages, each field once; what both read in one role is held against each other."""
    return by_field(_differing(there, here))


def by_field(found: Iterable[tuple[str, str, Any, Any]]) -> list[Difference]:
    """Each (stage, name, value there, value here), with the stages of those that are alike taken together."""
    fields: dict[str, Difference] = {}
    for stage, name, theirs, ours in found:
        key = repr((name, theirs, ours))
        stages = (*fields[key].stages, stage) if key in fields else (stage,)
        fields[key] = Difference(name, theirs, ours, tuple(dict.fromkeys(stages)))
    return list(fields.values())


def pairs(there: Lineage, here: Lineage) -> Iterator[tuple[Lineage, Lineage]]:
    """The two, then what both read in one role, level by level; each pair once, and none that is one folder."""
    seen, level = set[tuple[RunDirectory, RunDirectory]](), [(there, here)]
    while level:
        below = []
        for theirs, ours in level:
            if theirs.run.path != ours.run.path and (theirs.run, ours.run) not in seen:
                seen.add((theirs.run, ours.run))
                yield theirs, ours
                below += [(theirs.inputs[role], given) for role, given in ours.inputs.items() if role in theirs.inputs]
        level = below


def _differing(there: Lineage, here: Lineage) -> Iterator[tuple[str, str, Any, Any]]:
    """(stage, name, value there, value here)"""
    for theirs, ours in pairs(there, here):
        if theirs.run.fingerprint == ours.run.fingerprint:  # in two roots
            continue
        stage = ours.run.stage
        if not (theirs.known and ours.known):
            yield stage, "stage.json", "there" if theirs.known else "lost", "there" if ours.known else "lost"
            continue
        for one, other in ((theirs.scientific, ours.scientific), (theirs.others, ours.others)):
            for name in dict.fromkeys([*other, *one]):
                if one.get(name, ABSENT) != other.get(name, ABSENT):
                    yield stage, name, one.get(name, ABSENT), other.get(name, ABSENT)
        for role, given in theirs.inputs.items():
            if role not in ours.inputs:
                yield stage, f"reads {role}", given.run.stage, ABSENT
        for role, given in ours.inputs.items():
            if role not in theirs.inputs:
                yield stage, f"reads {role}", ABSENT, given.run.stage
