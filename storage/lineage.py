"""The lineage of a run: its configuration, its inputs from outside, every run that it reads; and how two differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from storage import durable
from storage.errors import BadInput
from storage.run_directory import RunDirectory

ABSENT = "absent"


def differences(before: object, after: object) -> list[str]:
    """One line for each field in which two JSON values differ: `budget.epochs: 1.0 there, 2.0 here`."""
    old, new = dict(leaves(before)), dict(leaves(after))
    names = [*new, *(name for name in old if name not in new)]
    return [
        f"{name}: {old.get(name, ABSENT)!r} there, {new.get(name, ABSENT)!r} here"
        for name in names
        if old.get(name, ABSENT) != new.get(name, ABSENT)
    ]


def leaves(value: object, name: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted name, value) for every value in nested dictionaries that is no dictionary itself."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


@dataclass(frozen=True)
class Lineage:
    """A run, and the parts of its fingerprint.

    `scientific` are its scientific fields by dotted name, `others` its stage's version and its inputs from outside.
    Both are empty, and `known` is False, where its stage.json is lost.
    """

    run: RunDirectory
    scientific: Mapping[str, Any] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Lineage] = field(default_factory=dict)
    known: bool = True

    def runs(self) -> set[RunDirectory]:
        """The run and every run that it reads, directly or not."""
        runs, waiting = set[RunDirectory](), [self]
        while waiting:
            lineage = waiting.pop()
            if lineage.run not in runs:
                runs.add(lineage.run)
                waiting += lineage.inputs.values()
        return runs


@dataclass(frozen=True)
class Difference:
    """A field in which two lineages differ, and the stages where it does, those nearest to the result first."""

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
        """The lineage of a run; its inputs may have been removed since."""
        if run not in self._read:
            self._read[run] = Lineage(run, known=False)  # also for one that was edited to read itself
            try:
                self._read[run] = self._read_stage(run)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, BadInput):
                pass
        return self._read[run]

    def _read_stage(self, run: RunDirectory) -> Lineage:
        stage = durable.read_json(run.stage_file)
        inputs = {role: self.of(read) for role, read in run.reads(stage["inputs"]).items()}
        others = {"version": stage["version"], **dict(leaves({"external": stage["external"]}))}
        return Lineage(run, dict(leaves(stage["scientific"])), others, inputs)

    def values(self, lineage: Lineage) -> dict[str, set[str]]:
        """Maps each scientific field of a run and of its inputs to the values there, as text; the run's own first."""
        merged = self._values.get(lineage.run)
        if merged is None:
            merged = {name: {str(value)} for name, value in lineage.scientific.items()}
            for read in lineage.inputs.values():
                for name, values in self.values(read).items():
                    merged[name] = merged.get(name, set()) | values
            self._values[lineage.run] = merged
        return merged


def differing(there: Lineage, here: Lineage) -> list[Difference]:
    """The differences of two lineages, each field once; inputs of the same role are compared with each other."""
    return by_field(_differing(there, here))


def asked(kept: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a kept study (study.json) as `--set` takes them, and `over.KEY` of a sweep; not how it is worked."""
    study = {key: value for key, value in kept.get("study", {}).items() if key not in ("name", "execution")}
    return dict(leaves(study | {"over": kept.get("over", {})}))


def asked_otherwise(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[Difference]:
    """The keys in which two kept studies differ, which a person can set; none where one of both was not kept."""
    before, now = asked(there), asked(here)
    names = dict.fromkeys([*now, *before] if now and before else [])
    rows = ((name, before.get(name, ABSENT), now.get(name, ABSENT)) for name in names)
    return [Difference(name, was, is_, ()) for name, was, is_ in rows if was != is_]


def by_field(rows: Iterable[tuple[str, str, Any, Any]]) -> list[Difference]:
    """Merges equal differences (stage, name, value there, value here) of several stages."""
    fields: dict[str, Difference] = {}
    for stage, name, theirs, ours in rows:
        key = repr((name, theirs, ours))
        stages = (*fields[key].stages, stage) if key in fields else (stage,)
        fields[key] = Difference(name, theirs, ours, tuple(dict.fromkeys(stages)))
    return list(fields.values())


def pairs(there: Lineage, here: Lineage) -> Iterator[tuple[Lineage, Lineage]]:
    """The two lineages, then their inputs of the same role, level by level; each pair once, none of one folder."""
    seen, level = set[tuple[RunDirectory, RunDirectory]](), [(there, here)]
    while level:
        below = []
        for theirs, ours in level:
            if theirs.run.path != ours.run.path and (theirs.run, ours.run) not in seen:
                seen.add((theirs.run, ours.run))
                yield theirs, ours
                below += [
                    (theirs.inputs[role], lineage) for role, lineage in ours.inputs.items() if role in theirs.inputs
                ]
        level = below


def _differing(there: Lineage, here: Lineage) -> Iterator[tuple[str, str, Any, Any]]:
    """Yields (stage, name, value there, value here) for each difference."""
    for theirs, ours in pairs(there, here):
        if theirs.run.fingerprint == ours.run.fingerprint:  # in two roots
            continue
        stage = ours.run.stage
        if not (theirs.known and ours.known):
            yield stage, "stage.json", "there" if theirs.known else "lost", "there" if ours.known else "lost"
            continue
        for before, after in ((theirs.scientific, ours.scientific), (theirs.others, ours.others)):
            for name in dict.fromkeys([*after, *before]):
                if before.get(name, ABSENT) != after.get(name, ABSENT):
                    yield stage, name, before.get(name, ABSENT), after.get(name, ABSENT)
        for role, lineage in theirs.inputs.items():
            if role not in ours.inputs:
                yield stage, f"reads {role}", lineage.run.stage, ABSENT
        for role, lineage in ours.inputs.items():
            if role not in theirs.inputs:
                yield stage, f"reads {role}", ABSENT, lineage.run.stage
