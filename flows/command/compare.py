"""`ratchet compare`: two runs of one stage, by configuration, by numerics and versions, by results, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from deployments.views.listing import date, ended_at, standing
from storage import attempts
from storage.differences import ABSENT, leaves
from storage.errors import BadInput
from storage.inside import inside
from storage.lineage import Difference, Lineage, Lineages, asked_otherwise, by_field, differing, pairs
from storage.run_directory import RunDirectory, read

SHOWN = 20
"""Lines of each part, where not all are asked for."""
SHOWN_STAGES = 4
NO_RESULTS = ("configuration", "provenance", "runs", "numerics", "numerics_changes")
"""Groups of `final_results.json` that say where its numbers come from: compared in parts of their own."""
LISTED_WITH_ITS_WORK = "stage.json"
"""The one output that says how the work was done too: it may differ between runs with the same results."""


def compared(one: RunDirectory, other: RunDirectory, everything: bool = False) -> Iterator[str]:
    """The lines for a person; each part is cut unless `everything` is asked for. BadInput for runs of two stages."""
    if one.path == other.path:
        raise BadInput(f"both are {one.path}: name two runs")
    if one.stage != other.stage:
        raise BadInput(
            f"{one.path} is of the stage {one.stage} and {other.path} of {other.stage}, which answer other questions: "
            "name two runs of one stage"
        )
    for name, run in (("A", one), ("B", other)):
        state, stands = standing(run)
        yield f"{name}  {run.path}  ({state}{f' {date(ended_at(run.path))}' if state == 'finished' else f': {stands}'})"
    lineages = Lineages()
    there, here = lineages.of(one), lineages.of(other)
    if keys := asked_otherwise(read(one.study_file), read(other.study_file)):
        yield from _part("keys of the study, as --set takes them", keys, everything)
    yield from _part("configuration, of all that they read too", differing(there, here), everything)
    changed = by_field(_worked_otherwise(there, here))
    yield from _part("numerics and versions", changed, everything)
    yield from _results(one, other, everything)
    yield _outputs(one, other)


def _part(title: str, differences: Sequence[Difference], everything: bool) -> Iterator[str]:
    if not differences:
        yield f"{title}: equal"
        return
    yield f"{title}: {len(differences)} differ"
    lines = [f"  {one.name}: {one.there} -> {one.here}{_stages(one.stages)}" for one in differences]
    yield from _cut(lines, everything)


def _stages(stages: Sequence[str]) -> str:
    more = [f"and {len(stages) - SHOWN_STAGES} more"] if stages[SHOWN_STAGES:] else []
    return f"  ({', '.join([*stages[:SHOWN_STAGES], *more])})" if stages else ""


def _cut(lines: Sequence[str], everything: bool) -> Iterator[str]:
    yield from lines if everything else lines[:SHOWN]
    if not everything and lines[SHOWN:]:
        yield f"  and {len(lines) - SHOWN:,} more: --all shows them"


def _worked_otherwise(there: Lineage, here: Lineage) -> Iterator[tuple[str, str, Any, Any]]:
    """(stage, name, value of A, value of B) of how the work was done, of the runs and of all that both read."""
    for one, other in pairs(there, here):
        theirs, ours = _work(one.run), _work(other.run)
        for name in dict.fromkeys([*theirs, *ours]):
            if theirs.get(name, ABSENT) != ours.get(name, ABSENT):
                yield one.run.stage, name, theirs.get(name, ABSENT), ours.get(name, ABSENT)


def _work(run: RunDirectory) -> dict[str, Any]:
    """Numerics, versions and commit of a run, by name; what cannot be read is not there."""
    about, attempt = read(run.stage_file), attempts.newest(run.attempts) or {}
    facts = {**(attempt.get("versions") or {}), **(about.get("numerics") or {})}
    if changes := about.get("numerics_changes"):
        facts["changes of numerics between attempts"] = len(changes)
    source = attempt.get("source") or {}
    if commit := source.get("commit"):
        facts["commit"] = commit[:12] + (" with changes" if source.get("dirty_digest") else "")
    return facts


def _results(one: RunDirectory, other: RunDirectory, everything: bool) -> Iterator[str]:
    both = [run.path / "final_results.json" for run in (one, other)]
    name = "final_results.json" if all(file.exists() for file in both) else "result.json"
    if missing := [str(run.path) for run in (one, other) if not (run.path / name).exists()]:
        yield f"results: there is no {name} in {' and '.join(missing)}"
        return
    theirs, ours = (dict(_values(read(inside(run.path, name)))) for run in (one, other))
    names = [key for key in dict.fromkeys([*theirs, *ours]) if theirs.get(key, ABSENT) != ours.get(key, ABSENT)]
    places = [key for key in names if _is_place(theirs.get(key)) or _is_place(ours.get(key))]
    lines = [f"  {_line(key, theirs.get(key, ABSENT), ours.get(key, ABSENT))}" for key in names if key not in places]
    number = len(theirs.keys() | ours.keys())
    if not names:
        yield f"results ({name}): equal, all {number:,} values"
        return
    beside = f", and {len(places):,} that name digests or run directories" if places else ""
    yield f"results ({name}): {len(lines):,} of {number:,} values differ{beside}"
    yield from _cut(lines, everything)


def _values(result: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """(dotted name, value) of everything that a stage found, items of lists by their place."""
    for name, value in leaves(result):
        if not set(NO_RESULTS) & set(name.split(".")[:-1]):
            yield from _items(name, value)


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            for inner, below in leaves(item, f"{name}[{number}]"):
                yield from _items(inner, below)
    else:
        yield name, value


def _is_place(value: Any) -> bool:
    """True where a value names other bytes or places, and is no finding of its own."""
    return isinstance(value, str) and re.search(r"\b[0-9a-f]{12,}\b", value) is not None


def _line(name: str, there: Any, here: Any) -> str:
    """`loss: 4.37821 -> 4.40812 (+0.0299)`"""
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (there, here)]
    difference = f" ({here - there:+.3g})" if all(numbers) else ""
    shown = [f"{value:.6g}" if isinstance(value, float) else str(value) for value in (there, here)]
    if shown[0] == shown[1]:  # they differ in later digits, or in their type
        shown = [repr(there), repr(here)]
    return f"{name}: {shown[0]} -> {shown[1]}{difference}"


def _outputs(one: RunDirectory, other: RunDirectory) -> str:
    """Says which outputs are byte-equal, by the digests in the markers, as far as these hold."""
    if doubted := [name for name, run in (("A", one), ("B", other)) if standing(run)[0] != "finished"]:
        return f"outputs: not compared, since {' and '.join(doubted)} {'are' if doubted[1:] else 'is'} not finished"
    listed = [read(run.marker_file).get("outputs", {}) for run in (one, other)]
    if not all(listed):
        return "outputs: not compared, since a marker lists their digests, and not both are finished"
    theirs, ours = (
        {name: described.get("sha256") for name, described in outputs.items() if name != LISTED_WITH_ITS_WORK}
        for outputs in listed
    )
    differ = [name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name]]
    parts = [
        f"{text} {', '.join(sorted(names))}"
        for text, names in (
            ("differ:", differ),
            ("only A has", theirs.keys() - ours),
            ("only B has", ours.keys() - theirs),
        )
        if names
    ]
    equal = len(theirs.keys() & ours.keys()) - len(differ)
    if not parts:
        return f"outputs: byte-equal, {equal} of {equal} by the digests in the markers"
    return f"outputs: byte-equal are {equal} of {len(theirs.keys() | ours.keys())}; {'; '.join(parts)}"
