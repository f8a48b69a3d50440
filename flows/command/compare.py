"""`ratchet compare`: two runs of one stage, by configuration, by numerics and versions, by results, byte for byte."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from deployments.views.listing import date, ended_at, standing
from storage import attempts
from storage.errors import BadInput
from storage.inside import inside
from storage.lineage import ABSENT, Difference, Lineage, Lineages, asked_otherwise, by_field, differing, leaves, pairs
from storage.run_directory import RunDirectory, read
from tasks.training.unlearned import best_row

SHOWN = 20
"""Lines of each part, where not all are asked for."""
SHOWN_STAGES = 4
NO_RESULTS = ("configuration", "provenance", "runs", "numerics", "numerics_changes")
"""Groups of `final_results.json` that say where its numbers come from: compared in parts of their own."""
LISTED_WITH_ITS_WORK = "stage.json"
"""The one output that says how the work was done too: it may differ between runs with the same results."""


def compared(a: RunDirectory, b: RunDirectory) -> dict[str, Any]:
    """All that differs, for a person and for `--json`. BadInput for runs of two stages."""
    if a.path == b.path:
        raise BadInput(f"both are {a.path}: name two runs")
    if a.stage != b.stage:
        raise BadInput(
            f"{a.path} is of the stage {a.stage} and {b.path} of {b.stage}, which answer other questions: "
            "name two runs of one stage"
        )
    lineages = Lineages()
    there, here = lineages.of(a), lineages.of(b)
    return {
        "a": _standing(a),
        "b": _standing(b),
        "study_keys": _differences(asked_otherwise(read(a.study_file), read(b.study_file))),
        "configuration": _differences(differing(there, here)),
        "numerics_and_versions": _differences(by_field(_worked_otherwise(there, here))),
        "results": _results(a, b),
        "outputs": _outputs(a, b),
    }


def in_words(facts: dict[str, Any], everything: bool = False) -> Iterator[str]:
    """The lines for a person; each part is cut unless `everything` is asked for."""
    for name in ("a", "b"):
        run = facts[name]
        when = f" {date(run['ended_at'])}" if run["ended_at"] else ""
        yield f"{name.upper()}  {run['folder']}  ({run['state']}{when}{run['stands'] and ': '}{run['stands']})"
    if facts["study_keys"]:
        yield from _part("keys of the study, as --set takes them", facts["study_keys"], everything)
    yield from _part("configuration, of all that they read too", facts["configuration"], everything)
    yield from _part("numerics and versions", facts["numerics_and_versions"], everything)
    yield from _results_in_words(facts["results"], everything)
    yield _outputs_in_words(facts["outputs"])


def _standing(run: RunDirectory) -> dict[str, Any]:
    state, stands = standing(run)
    ended = ended_at(run.path) if state == "finished" else None
    return {"folder": run.path, "state": state, "stands": stands, "ended_at": ended}


def _differences(differences: Sequence[Difference]) -> list[dict[str, Any]]:
    return [{"name": each.name, "a": each.there, "b": each.here, "stages": each.stages} for each in differences]


def _part(title: str, differences: Sequence[dict[str, Any]], everything: bool) -> Iterator[str]:
    if not differences:
        yield f"{title}: equal"
        return
    yield f"{title}: {len(differences)} differ"
    lines = [f"  {each['name']}: {each['a']} -> {each['b']}{_stages(each['stages'])}" for each in differences]
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
    for a, b in pairs(there, here):
        theirs, ours = _work(a.run), _work(b.run)
        for name in dict.fromkeys([*theirs, *ours]):
            if theirs.get(name, ABSENT) != ours.get(name, ABSENT):
                yield a.run.stage, name, theirs.get(name, ABSENT), ours.get(name, ABSENT)


def _work(run: RunDirectory) -> dict[str, Any]:
    """Numerics, versions and commit of a run, by name; what cannot be read is not there."""
    about, attempt = read(run.stage_file), attempts.newest(run.attempts) or {}
    facts = {**(attempt.get("versions") or {}), **(about.get("numerics") or {})}
    if changes := about.get("numerics_changes"):
        facts["changes of numerics between attempts"] = len(changes)
    return facts | attempts.commits_in(attempt.get("source") or {})


def _results(a: RunDirectory, b: RunDirectory) -> dict[str, Any]:
    both = [run.path / "final_results.json" for run in (a, b)]
    name = "final_results.json" if all(file.exists() for file in both) else "result.json"
    if missing := [run.path for run in (a, b) if not (run.path / name).exists()]:
        return {"file": name, "missing": missing}
    best = {} if name == "final_results.json" else {run: {"best": row} for run in (a, b) for row in best_row(run)}
    theirs, ours = (dict(_values(read(inside(run.path, name)) | best.get(run, {}))) for run in (a, b))
    pairs = [(key, theirs.get(key, ABSENT), ours.get(key, ABSENT)) for key in dict.fromkeys([*theirs, *ours])]
    differ = [pair for pair in pairs if pair[1] != pair[2]]
    differing = [{"name": key, "a": a, "b": b} for key, a, b in differ if not (_is_place(a) or _is_place(b))]
    return {"file": name, "values": len(pairs), "differing": differing, "places": len(differ) - len(differing)}


def _results_in_words(facts: dict[str, Any], everything: bool) -> Iterator[str]:
    name = facts["file"]
    if "missing" in facts:
        yield f"results: there is no {name} in {' and '.join(map(str, facts['missing']))}"
        return
    differing, places, number = facts["differing"], facts["places"], facts["values"]
    if not differing and not places:
        yield f"results ({name}): equal, all {number:,} values"
        return
    beside = f", and {places:,} that name digests or run directories" if places else ""
    yield f"results ({name}): {len(differing):,} of {number:,} values differ{beside}"
    yield from _cut([f"  {_line(each['name'], each['a'], each['b'])}" for each in differing], everything)


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


def _outputs(a: RunDirectory, b: RunDirectory) -> dict[str, Any]:
    """Which outputs are byte-equal, by the digests in the markers, as far as these hold; or why that is not known."""
    if doubted := [name for name, run in (("A", a), ("B", b)) if standing(run)[0] != "finished"]:
        return {"not_compared": f"since {' and '.join(doubted)} {'are' if doubted[1:] else 'is'} not finished"}
    listed = [read(run.marker_file).get("outputs", {}) for run in (a, b)]
    if not all(listed):
        return {"not_compared": "since a marker lists their digests, and not both are finished"}
    theirs, ours = (
        {name: described.get("sha256") for name, described in outputs.items() if name != LISTED_WITH_ITS_WORK}
        for outputs in listed
    )
    differ = sorted(name for name in theirs.keys() & ours.keys() if theirs[name] != ours[name])
    equal = sorted((theirs.keys() & ours.keys()) - {*differ})
    only_a, only_b = sorted(theirs.keys() - ours.keys()), sorted(ours.keys() - theirs.keys())
    return {"equal": equal, "differ": differ, "only_a": only_a, "only_b": only_b}


def _outputs_in_words(facts: dict[str, Any]) -> str:
    if why := facts.get("not_compared"):
        return f"outputs: not compared, {why}"
    lists = {"differ:": facts["differ"], "only A has": facts["only_a"], "only B has": facts["only_b"]}
    parts = [f"{text} {', '.join(names)}" for text, names in lists.items() if names]
    equal, number = len(facts["equal"]), sum(map(len, facts.values()))
    if not parts:
        return f"outputs: byte-equal, {equal} of {equal} by the digests in the markers"
    return f"outputs: byte-equal are {equal} of {number}; {'; '.join(parts)}"
